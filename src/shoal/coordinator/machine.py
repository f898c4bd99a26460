"""The coordinator's logic for one run: a pure machine, `step(instant, event) -> effects`.

In flow what nodes say and the passing of time; out flow entries to append, messages to send and blobs to
fetch, in order. Invariant: nothing is said to anybody before the entry or claim it rests on is durable, since
effects are carried out in order and every entry goes through `RunView.apply`, the check everyone else makes.
"""

from __future__ import annotations

import contextlib
import math

import msgspec

from shoal.base.ids import BlobId, NodeId, RunId
from shoal.coordinator.absent import Absent
from shoal.coordinator.admission import banned
from shoal.coordinator.attesting import Attesting
from shoal.coordinator.auditing import Auditing
from shoal.coordinator.claims import Claims, Demand
from shoal.coordinator.digesting import Digesting
from shoal.coordinator.events import (
    Append,
    Archive,
    Arrived,
    BanAsked,
    BlobFetched,
    Coordinators,
    Dismiss,
    Drop,
    Effect,
    EnterCredit,
    Event,
    FundAsked,
    GraftAsked,
    Instant,
    Lost,
    Prune,
    RegionsDecided,
    RevokeAsked,
    RewindAsked,
    Said,
    Send,
    SendEntries,
    SendReceipt,
    StopAsked,
    Tell,
    Ticked,
)
from shoal.coordinator.keyring import KeyDesk, revoked
from shoal.coordinator.market import Market
from shoal.coordinator.missed import Missed
from shoal.coordinator.pacing import Pacing, Telling, is_soon, news_of
from shoal.coordinator.private import PrivacyBudgets
from shoal.coordinator.rounds import Rounds
from shoal.coordinator.seats import LAG_ALLOWED, Seats
from shoal.credit.crediting import Crediting
from shoal.measure.telemetry import Telemetry
from shoal.planner.loop import AwarePlanner
from shoal.runlog.chain import BadEntry, make_link
from shoal.runlog.entries import (
    Attestations,
    Ban,
    Body,
    Digests,
    Funded,
    Graft,
    Joined,
    Left,
    Regions,
    Revoked,
    Rewind,
    Rotated,
    Seal,
    Snapshot,
    Stopped,
)
from shoal.runlog.view import MAX_TEXT
from shoal.strategy.beginning import most_nodes
from shoal.strategy.planning import budget_spent, mixes_pairs
from shoal.strategy.recipe import Recipe
from shoal.wire.identity import Identity
from shoal.wire.messages import (
    Attest,
    Audited,
    Beat,
    Entries,
    Folded,
    Goodbye,
    Heartbeat,
    NeedEntries,
    Offer,
    PeerAddress,
    Peers,
    Rebuild,
    Refuse,
    Stuck,
    Welcome,
)

_OF_ONE, _MEMBERSHIP = (Arrived, Said, Lost), (Joined, Left)
CHANGES_A_ROUND = 4


class CoordinatorMachine:
    """One run's sequencer. Build it with what follows its log and the claims kept at the last stop."""

    def __init__(
        self,
        *,
        identity: Identity,
        crediting: Crediting,
        recipe: Recipe,
        kept: dict[str, bytes],
        own_address: str,
        instant: Instant,
        term: int = 0,
    ) -> None:
        self.view = view = crediting.view
        self.crediting = crediting
        self.recipe = recipe
        self._rule = recipe.strategy.seal_rule()
        self.seats = Seats(recipe.membership, math.inf if self._rule.shares_fleet else LAG_ALLOWED)
        self._identity = identity
        self._term = max(view.term + 1, term)
        self._own_address = own_address
        self.auditing = Auditing(recipe, view)
        self._claims = Claims(
            view,
            recipe.storage.receipts,
            recipe.strategy.weights,
            kept,
            instant.now,
            self.auditing.share,
        )
        self.market = Market(crediting, self.seats)
        self.privacy = PrivacyBudgets(recipe, view, self.seats)
        self.telemetry = Telemetry()
        aware = recipe.strategy.planner.kind == "aware"
        self.planner = AwarePlanner(recipe, view, self.telemetry) if aware else None
        self._rounds = Rounds(
            recipe,
            self._rule,
            view,
            self.seats,
            self._claims,
            self.market,
            instant.now,
            self.planner,
            self.privacy,
        )
        self._attesting = Attesting(view)
        self._digesting = Digesting(view, recipe.strategy.digest_deadline_s, instant.now)
        self._keys = KeyDesk(view, identity, (self._claims, self._attesting, self._digesting))
        # Editions of this term are above those of every earlier one.
        self._peers = Peers(edition=self._term << 32, peers=(PeerAddress(identity.node, own_address),))
        self._reachable: tuple[tuple[NodeId, str], ...] = ()
        self._coordinators: tuple[str, ...] = ()
        self._changes: dict[NodeId, tuple[int, int]] = {}
        """The round of each node's last coming or going, and how many it had in that round."""
        self._distrusted: set[NodeId] = set()
        """Who made or vouched for an update that nobody could get."""
        self._unreliable: set[NodeId] = set()
        """Who vouched for an update that its author had to bring here, since nobody else gave it."""
        self._absent = Absent(recipe.membership)
        self._missed = Missed(recipe.membership)
        self._graft: Graft | None = None
        """The parent's news that wait for the end of a round."""
        self._pacing = Pacing(self.tick_s)
        self._telling = Telling()
        self._peers_told_at = -math.inf
        self._effects: list[Effect] = []
        # By a clock that is behind the last leader's, a run that ends after so many seconds would go on for longer.
        self._behind_ms = max(0, view.time_ms - instant.wall_ms)
        self._instant = instant
        for node in view.planned:
            self.seats.expect(node, instant.now)

    @property
    def run(self) -> RunId:
        return self.view.run

    @property
    def tick_s(self) -> float:
        """How often time must be seen to pass."""
        heartbeat_s = self.recipe.membership.heartbeat_s
        return min(heartbeat_s / 2, max(0.5, heartbeat_s / 8), self._rule.tick_s)

    @property
    def waiting_for(self) -> str:
        """In words, what the run is waiting for now."""
        if self.view.stopped is not None:
            return "nothing: the run is over" if self.finished else "the final state to be saved"
        return self._digesting.waiting_for if self.view.unsettled else self._rounds.waiting_for

    @property
    def out_of_budget(self) -> str:
        """In words, why nobody can be paid for a next round; "" if somebody can."""
        idle = self.view.plan is None and self.view.unsettled is None and self.view.stopped is None
        return self.market.short if idle else ""

    def note(self, node: NodeId) -> str:
        """Why a node is given no work; "" if nothing keeps it from the next plan."""
        if note := self.market.note(node):
            return note
        idle = self.view.stopped is None and node not in self.view.planned
        why = self.privacy.objection(node) if idle else ""
        return f"paused: {why}" if why else ""

    @property
    def finished(self) -> bool:
        """Stopped, with the final state saved."""
        return self.view.stopped is not None and self.view.best_start().at == self.view.at

    def step(self, instant: Instant, event: Event) -> list[Effect]:
        """Take one event; what must be done about it, in order."""
        behind_ms = self._behind_ms
        self._instant = Instant(instant.now, instant.wall_ms + behind_ms) if behind_ms else instant
        self._effects = []
        self._change_key(self._keys.own())
        news = True
        match event:
            case Said():
                news = self._said(event.node, event.message)
            case Ticked():
                pass
            case Arrived():
                self._arrived(event)
            case Lost():
                self.seats.lost(event.node, instant.now)
            case BlobFetched():
                self._blob_fetched(event)
            case StopAsked():
                self._stop(event.reason)
            case RewindAsked():
                self._rewind(event.to, event.reason)
            case RevokeAsked():
                self._revoke(event)
            case BanAsked():
                self._ban(Ban(node=event.node, until_ms=event.until_ms, reason=event.reason[:MAX_TEXT]))
            case FundAsked():
                if self.view.stopped is None:
                    self.market.short = ""
                    self._append(Funded(add_micro=event.add_micro, reason=event.reason[:MAX_TEXT]))
            case GraftAsked():
                self._graft = event.graft
            case RegionsDecided():
                self._regroup(event.regions)
            case Coordinators():
                self._coordinators = event.addresses
        one = isinstance(event, _OF_ONE)
        if self._pacing.due(instant.now, len(self.seats.by_node) if one else 0, news=news):
            self._advance()
            self._tell_members()
        return self._effects

    # --- nodes come, speak and go ----------------------------------------------------------------------

    def _arrived(self, event: Arrived) -> None:
        member = self.view.members.get(event.node)
        if member is None and (refuse := self._no_room()):
            self._effects.append(Dismiss(event.node, refuse))
            return
        if (member is None or not member.present) and self._may_change(event.node):
            self._append(Joined(node=event.node, public=event.public, name=event.name))
        self._change_key(self._keys.handed_over(event.node, event.line))
        self.seats.arrived(
            event.node, event.name, event.address, self._instant.now, min_price_micro=event.min_price_micro
        )
        heartbeat_s = self.recipe.membership.heartbeat_s
        welcome = Welcome(run=self.run, heartbeat_s=heartbeat_s, length=self.view.length)
        self._effects += [Send(event.node, welcome), Send(event.node, self._peers)]
        self._send_entries(event.node, event.length)
        self._effects.append(SendReceipt(event.node))

    def _no_room(self) -> Refuse | None:
        """Why nobody new may join, if so."""
        if self.view.stopped is not None:
            return _ended(self.view.stopped)
        most = most_nodes(self.recipe)
        if len(self.view.members) < most:
            return None
        return Refuse(
            code="SH-JOIN-11",
            cause=f"the run has had its {most} nodes",
            next_step="ask the organiser to raise membership.max_nodes in a new run",
        )

    def _may_change(self, node: NodeId) -> bool:
        """A few membership entries per node and round: coming and going must not fill the log."""
        if self.view.stopped is not None:
            return False
        when, count = self._changes.get(node, (self.view.round, 0))
        count = count + 1 if when == self.view.round else 1
        self._changes[node] = (self.view.round, count)
        return count <= CHANGES_A_ROUND or node not in self.view.members

    def _send_entries(self, node: NodeId, start: int) -> None:
        if 0 <= start < self.view.length:
            self._effects.append(SendEntries(node, start))

    def _said(self, node: NodeId, message: msgspec.Struct) -> bool:
        """Take what a node says; whether any of it may move the run."""
        if not self.seats.heard(node, self._instant.now):
            return False
        match message:
            case Heartbeat():
                return self._beat(node, message)
            case NeedEntries():
                self._send_entries(node, message.start)
            case Offer():
                self._effects += self._claims.offered(node, message, self._demand(node), self._instant.now)
            case Attest():
                self._attested(node, message)
            case Folded():
                self._digesting.heard(node, message.word)
            case Audited():
                if audits := self.auditing.heard(node, message):
                    self._append(audits)
            case Stuck():
                self._missed.heard(self.view, message, self._instant.now)
            case Goodbye():
                self._goodbye(node, message.reason)
        return True

    def _beat(self, node: NodeId, message: Heartbeat) -> bool:
        news = self.seats.beat(node, message)
        if message.vitals is not None:
            self.telemetry.heard(node, message.vitals, self.view.members)
        told = self.view.length - len(self._telling.untold)
        self._effects.append(Send(node, Beat(length=told, probe=message.probe, note=self.note(node))))
        if message.peers != self._peers.edition:
            self._effects.append(Send(node, self._peers))
        return news

    def _demand(self, node: NodeId) -> Demand:
        """What storage this node's next update must show."""
        doubted = frozenset(self._distrusted | self._unreliable)
        others = [n for n, _ in self.seats.reachable(self._instant.now) if n != node and n not in doubted]
        return Demand(
            seeders=len(others) + 1,
            distrusted=doubted,
            own=self._identity.node if node in self._distrusted else None,
            enough=self._identity.node,
            patience_s=self.recipe.membership.lease_s,
        )

    def _ban(self, ban: Ban) -> None:
        """Keep a node out, and tell it so; or let it in again."""
        if self.view.stopped is not None:
            return
        self._append(ban)
        if self.view.banned(ban.node, self._instant.wall_ms) is None:
            return
        self._claims.refuse(ban.node, f"its node is banned: {ban.reason}")
        self.seats.left(ban.node)
        member = self.view.members.get(ban.node)
        if member is not None and member.present:
            self._append(Left(node=ban.node, reason=f"banned: {ban.reason}"[:MAX_TEXT]))
        self._effects.append(Dismiss(ban.node, banned(ban, self._instant.wall_ms)))

    def _change_key(self, rotated: Rotated | None) -> None:
        """Another key speaks for a node from now on."""
        if rotated is not None:
            self._append(rotated)
            self._keys.recheck()

    def _revoke(self, asked: RevokeAsked) -> None:
        """No key speaks for a member any more: its work that is not sealed is void, and it has to go."""
        if self.view.stopped is not None or not self._keys.may_revoke(asked.node):
            return
        reason = asked.reason[:MAX_TEXT]
        self._append(Revoked(node=asked.node, reason=reason, word=asked.word))
        self._claims.refuse(asked.node, f"its keys were revoked: {reason}")
        self._keys.recheck()
        self.seats.left(asked.node)
        if self.view.members[asked.node].present:
            self._append(Left(node=asked.node, reason=f"keys revoked: {reason}"[:MAX_TEXT]))
        self._effects.append(Dismiss(asked.node, revoked()))

    def _goodbye(self, node: NodeId, reason: str) -> None:
        self.seats.left(node)
        if self.view.members[node].present and self._may_change(node):
            self._append(Left(node=node, reason=reason[:MAX_TEXT]))

    def _tell_members(self) -> None:
        """Tell everyone who came, left and can be reached when that has changed; many are told a while later."""
        now, nodes = self._instant.now, len(self.seats.by_node)
        if items := self._telling.due(now, nodes):
            self._effects.append(Tell(Entries(items=items)))
        reachable = self.seats.reachable(now)
        same = (reachable, self._coordinators) == (self._reachable, self._peers.coordinators)
        if same or is_soon(now, self._peers_told_at, nodes):
            return
        self._peers_told_at = now
        before, known = self._peers, self._reachable
        own = PeerAddress(self._identity.node, self._own_address)
        peers = (*(PeerAddress(node, address) for node, address in reachable), own)
        self._reachable = reachable
        self._peers = Peers(edition=before.edition + 1, peers=peers, coordinators=self._coordinators)
        self._effects.append(Tell(news_of(self._peers, before.edition, known, reachable)))

    # --- attestations, snapshots, trouble ----------------------------------------------------------------

    def _attested(self, node: NodeId, message: Attest) -> None:
        attestation = self._attesting.heard(node, message.attestation)
        if attestation is None:
            return
        self.seats.reached(node, attestation.at.position)
        at = attestation.at.position
        verdict = self._attesting.judge(at, self.seats.live(self._instant.now))
        if verdict is None:
            return
        if verdict.agreed is None:
            self._rewind(self._attesting.last_agreed(), f"no majority agrees on the state at {at}")
            return
        if verdict.news:
            self._append(Attestations(items=verdict.news))
        for dissenter in verdict.dissenters:
            self._effects.append(Send(dissenter, Rebuild(at=at)))
        self._effects += self._attesting.fetch_snapshot(at)

    def _blob_fetched(self, event: BlobFetched) -> None:
        if self._attesting.asked_for(event.at, event.blob):
            self._snapshot_fetched(event)
            return
        index = self.view.index_of(event.at)
        if index is None or event.at <= self.view.best_start().at:
            return
        for update in self.view.path[index].updates:
            if update.claim.blob == event.blob and event.pushed:
                self._unreliable |= {*update.holders} - {self._identity.node}
        step = self.view.path[index]
        for blob, _, holders in step.sources:
            if blob == event.blob and event.size_bytes is None:
                self._distrusted |= {*holders} - {self._identity.node}
                before = self.view.path[index - 1].position if index else 0
                what = f"{'update' if blob in step.blobs else 'digest'} {blob[:12]}"
                self._rewind(before, f"nobody has {what} of the seal at {event.at} any more")
                return

    def _snapshot_fetched(self, event: BlobFetched) -> None:
        if event.size_bytes is None:
            self._effects += self._attesting.snapshot_failed(event.at, event.blob)
            return
        agreed = self._attesting.agreed_at(event.at)
        if agreed is None or event.state != agreed.state:
            self._effects += self._attesting.snapshot_false(event.at, event.blob)
            return
        known = any(saved.at == event.at for saved in self.view.snapshots)
        if known or not self.view.stands(event.at):
            return
        snapshot = Snapshot(
            at=event.at,
            state=agreed.state,
            blob=event.blob,
            size_bytes=event.size_bytes,
            holders=agreed.holders if agreed.snapshot == event.blob else (),
        )
        self._append(snapshot)
        self._effects.append(Prune())

    def _rewind(self, to: int, reason: str) -> None:
        if to != self.view.at and self.view.may_rewind(to):
            self._claims.void(f"the run was rewound: {reason}")
            self._append(Rewind(to=to, reason=reason[:MAX_TEXT]))

    def _stop(self, reason: str) -> None:
        """End the run: what is kept counts, what cannot count any more is said to be rejected."""
        if self.view.stopped is not None:
            return
        if self.view.unsettled is not None:
            self._settle_digests(self._digesting.close("the run is stopped"))
        if self._claims.nodes():
            if self.view.plan is None:
                self._append(self._rounds.open_for_late(self._instant.now))
            count = f"{len(self._claims.nodes())} updates"
            self._seal(self._rounds.seal(self._instant.now, f"{count}, and the run is stopped"), last=True)
        self._append(Stopped(reason=reason[:MAX_TEXT], rejected=self._claims.reject()))
        self._drop_settled()

    # --- rounds ------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Seal, plan or stop, if the time has come."""
        self._effects += self._missed.due(self.view, self.seats.live(self._instant.now), self._instant.now)
        if self.view.stopped is not None:
            self._drop_settled()  # Those that a crash right after the end left behind.
            return
        now = self._instant.now
        for node, reason in self._absent.gone(self.view, self.seats.live(now), now):
            self._append(Left(node=node, reason=reason))
        for ban in self.auditing.bans(self._instant.wall_ms):
            self._ban(ban)
        body = self._rounds.decide(now) if self.view.plan is not None else None
        if isinstance(body, Seal):
            self._seal(body)
        elif body is not None:
            self._append(body)
        if digests := self._digesting.decide(now, self.seats.live(now)):
            self._settle_digests(digests)
        if self.view.plan is None and self.view.unsettled is None:
            self._take_graft()
            spent = budget_spent(self.recipe, self.view, self._instant.wall_ms)
            if spent := spent or self.privacy.all_spent():
                self._stop(spent)
            elif plan := self._rounds.open(now):
                self._append(plan)

    def _seal(self, seal: Seal, *, last: bool = False) -> None:
        if not last and mixes_pairs(self.recipe, self.view, seal, self._instant.wall_ms):
            seal = msgspec.structs.replace(seal, pairs=True, reason=f"{seal.reason}; pairs meet")
        self._append(seal)
        self._drop_settled()
        if last and self.view.unsettled is not None:
            self._settle_digests(self._digesting.close("the run is stopped"))
        elif self.view.unsettled is None:
            self._archive()

    def _settle_digests(self, digests: Digests) -> None:
        self._append(digests)
        self._archive()

    def _take_graft(self) -> None:
        """Between two rounds: the parent's news, unless the state of these rounds is not everybody's yet."""
        graft, view = self._graft, self.view
        if graft is None or view.unsettled is not None or (view.path and view.path[-1].pairs):
            return
        self._graft = None
        if graft.parent.position > view.grafted:
            self._append(graft)

    def _regroup(self, regions: Regions) -> None:
        """Note how the pool's machines are grouped, unless that was decided of what is not so any more."""
        with contextlib.suppress(BadEntry):
            self.view.check(regions)
            self._append(regions)

    def _drop_settled(self) -> None:
        self._effects += [Drop(key) for key in self._claims.settled()]

    def _archive(self) -> None:
        step = self.view.path[-1]
        if self.recipe.storage.archive and step.sources:
            self._effects.append(Archive(step.position, step.sources))

    def _append(self, body: Body) -> None:
        try:
            link = make_link(
                self._keys.signer, self.run, self.view.head, self._term, self._instant.wall_ms, body
            )
            credited = self.crediting.take(link)
        except BadEntry as error:
            raise AssertionError(f"the coordinator made an entry that {error}") from error
        self._effects.append(Append(link.entry.position, link.encoded, type(body).__name__.lower()))
        waits = isinstance(body, _MEMBERSHIP)
        items = self._telling.take(link.encoded, self._instant.now, len(self.seats.by_node), waits=waits)
        tell = [Tell(Entries(items=items))] if items else []
        earned = [EnterCredit(link.entry.position, link.hash, credited.lines)] if credited.lines else []
        # With the last entry nodes leave: their last receipts go before it.
        self._effects += [*earned, *tell] if self.finished else [*tell, *earned]

    def needed_blobs(self) -> set[BlobId]:
        """What the coordinator's own store must keep: news that wait for the end of a round, too."""
        waiting = {self._graft.blob} if self._graft else set()
        return self.view.needed_blobs() | self._claims.blobs() | self.auditing.evidence() | waiting


def _ended(reason: str) -> Refuse:
    return Refuse(
        code="SH-JOIN-08", cause=f"the run has ended: {reason}", next_step="ask the organiser for another run"
    )
