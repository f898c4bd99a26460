"""What a log says: members, versions, the open plan, the path of states. A pure fold over entries.

In flow entries in order; out flows the run as everybody must see it. Invariant: `apply` either accepts an
entry wholly, having checked every signature and rule in it, or raises `BadEntry` and changes nothing; so the
coordinator before it appends, a node as it follows, and `verify` afterwards all use this one check.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from shoal.base.ids import BlobId, NodeId, RunId
from shoal.data.manifest import blobs as data_blobs
from shoal.runlog.chain import NO_HEAD, BadEntry, Link, check_link, genesis_key, read_link
from shoal.runlog.entries import (
    Accepted,
    Attestation,
    Attestations,
    Audits,
    Ban,
    Body,
    DataRange,
    Digests,
    Entry,
    Funded,
    Genesis,
    Graft,
    Head,
    Joined,
    Left,
    Plan,
    Regions,
    Rejected,
    Revoked,
    Rewind,
    Rotated,
    Screening,
    Seal,
    Snapshot,
    Stopped,
    Verdict,
)
from shoal.runlog.keys import Keys, open_line
from shoal.runlog.lean import Hashes, lean_word
from shoal.runlog.pieces import held_pieces, lacking
from shoal.runlog.rules import MAX_TEXT, Opened, check_body
from shoal.runlog.sharding import by_shard, shards_of
from shoal.runlog.statements import open_claim, read_receipts, require
from shoal.runlog.steps import PackedUpdates, SavedState, Step, Totals, Update, added, position_of
from shoal.runlog.work import OpenWork, Pace, Standing, expire_work, give_work, settle_work
from shoal.wire.identity import node_id

__all__ = ["MAX_TEXT", "Finding", "Member", "RunView", "SavedState", "Step", "Totals", "Update"]
__all__ += ["head_of", "verify_log"]

_MOVE_KEPT = (Genesis, Snapshot, Rewind)
"""After these entries other saved states may be the kept ones."""
ASSIGNMENTS_KEPT = 8
VERDICTS_KEPT = 16
STEPS_OPEN = 64
"""The latest steps, which audits and plans look at, are never packed."""
KEPT_SNAPSHOTS = 2
"""Saved states that everybody keeps, with the updates after them; older ones may be pruned."""


@dataclass(slots=True)
class Member:
    """A node that was admitted to the run."""

    node: NodeId
    public: bytes
    name: str
    present: bool = True
    last_sequence: int = -1
    """The highest sequence of its claims that a seal has settled, either way."""
    counted_to: int = 0
    """Sample counters below this are counted, or given up."""
    accepted: list[int] = field(default_factory=list)
    """The sequences of its latest claims that a seal accepted."""
    assigned: list[DataRange] = field(default_factory=list)
    """The samples of its latest assignments."""
    steps: int = 0
    """Inner steps in all of its claims that a seal accepted, those that were undone later too."""
    updates: int = 0
    """How many claims that were."""


class RunView:
    """The run as its log tells it. Read its fields freely; change them only through `apply`."""

    def __init__(self) -> None:
        self.run = RunId("")
        self.genesis: Genesis | None = None
        self.coordinator = NodeId("")
        self.head = NO_HEAD
        self.length = 0
        self.term = 0
        self.time_ms = 0
        self.hashes = Hashes()
        """Of every entry, by its position."""
        self.members: dict[NodeId, Member] = {}
        self.keys: dict[NodeId, Keys] = {}
        """Who speaks with which key: members, and the coordinator."""
        self.round = 0
        self.versions: list[int] = []
        self.path: list[Step] = []
        self.plan: Plan | None = None
        self.plan_position = -1
        self.planned: OpenWork = {}
        """Work that is out and may still be claimed, by member and position of the plan."""
        self.pace = Pace()
        self.next_counter = 0
        self.snapshots: list[SavedState] = []
        self.attested: dict[int, dict[NodeId, Attestation]] = {}
        self.stopped: str | None = None
        self._kept: list[SavedState] | None = None
        self._packed = 0
        """So many steps at the path's beginning are packed."""
        self.rewound_at = -1
        """The position of the last rewind."""
        self.audit_words: list[tuple[int, Screening | Verdict]] = []
        """What members said of others' claims, each with the position of its entry."""
        self.bans: dict[NodeId, tuple[int, Ban]] = {}
        """The latest word on every node that was ever banned, with its position."""
        self.funded_micro = 0
        """What was added to the budget of its credit."""
        self.regions: Regions | None = None
        """How the pool's machines are grouped, where the coordinator begins regions by itself."""
        self.last_region = 0
        """The highest number that a region had."""
        self.began_ms = 0
        """When the first round was planned, by the coordinator's clock."""

    # --- reading ---------------------------------------------------------------------------------------

    @property
    def at(self) -> int:
        """The position whose state is current: the last standing seal, or 0."""
        return self.path[-1].position if self.path else 0

    @property
    def unsettled(self) -> Step | None:
        """The last seal, while it waits for digests."""
        return self.path[-1] if self.path and not self.path[-1].settled else None

    @property
    def grafted(self) -> int:
        """The place in the parent's log that this region's state has news of; -1 for none."""
        grafts = (step.graft.parent.position for step in reversed(self.path) if step.graft is not None)
        return next(grafts, -1)

    @property
    def steps_done(self) -> int:
        """Seals that stand."""
        return len(self.path)

    @property
    def totals(self) -> Totals:
        """What the path amounts to."""
        return self.path[-1].totals if self.path else Totals()

    def public_of(self, node: NodeId) -> bytes | None:
        """The key that speaks for a member or for the coordinator now; None if there is none."""
        keys = self.keys.get(node)
        return keys.current or None if keys else None

    @property
    def coordinator_keys(self) -> tuple[bytes, ...]:
        """Those that have signed entries and were not revoked, the current one first."""
        keys = self.keys.get(self.coordinator)
        return (keys.current, *(public for public, _ in keys.former)) if keys else ()

    def fate_of(self, node: NodeId, sequence: int, plan: int) -> bool | None:
        """What became of a claim: True if a seal accepted it, False if none can any more, None while it is open."""
        member = self.members.get(node)
        if member is None or plan >= self.length:
            return None
        if sequence in member.accepted:
            return True
        is_open = sequence > member.last_sequence and plan in self.planned.get(node, {})
        return None if is_open else False

    def banned(self, node: NodeId, wall_ms: int) -> Ban | None:
        """The ban that keeps a node out at this time, if one does."""
        _, ban = self.bans.get(node, (-1, None))
        return ban if ban is not None and wall_ms < ban.until_ms else None

    def next_step(self, at: int) -> Step | None:
        """The transition that follows the state at `at`, or None if there is none or `at` was undone."""
        if at == 0:
            return self.path[0] if self.path else None
        index = self.index_of(at)
        return self.path[index + 1] if index is not None and index + 1 < len(self.path) else None

    def index_of(self, at: int) -> int | None:
        """Where on the path the seal at this position stands, or None if it does not (any more)."""
        index = bisect_left(self.path, at, key=position_of)
        return index if index < len(self.path) and self.path[index].position == at else None

    def step_at(self, at: int) -> Step | None:
        """The seal at this position, if it stands."""
        index = self.index_of(at)
        return None if index is None else self.path[index]

    def stands(self, at: int) -> bool:
        """True if the state at this position is on the path to the current one."""
        return at == 0 or self.index_of(at) is not None

    def best_start(self) -> SavedState:
        """The latest saved state that still stands."""
        return self.kept_states()[-1]

    def kept_states(self) -> list[SavedState]:
        """The saved states that everybody keeps, oldest first: the last few that stand. (Not the last logged:
        the snapshot of an older state may be stored later.)"""
        if self._kept is None:
            standing = [saved for saved in self.snapshots if self.stands(saved.at)]
            self._kept = sorted(standing, key=lambda saved: saved.at)[-KEPT_SNAPSHOTS:]
        return self._kept

    def may_rewind(self, to: int) -> bool:
        """True if the state at this position stands and can be rebuilt from what everybody keeps, and the run is not
        over with its final state saved."""
        over = self.stopped is not None and self.best_start().at == self.at
        return not over and self.stands(to) and to >= self.kept_states()[0].at

    def needed_blobs(self) -> set[BlobId]:
        """Blobs that somebody may still need: the kept states, every update (or what was made of all of them) after
        them, and the data."""
        kept = self.kept_states()
        needed = {saved.blob for saved in kept}
        later = self.path[bisect_left(self.path, kept[0].at + 1, key=position_of) :]
        needed.update(blob for step in later for blob, _, _ in step.sources)
        needed.update(update.claim.blob for step in later if step.pairs for update in step.updates)
        needed.update(piece for step in later for update in step.updates for piece in update.claim.pieces)
        if self.genesis:
            needed.update(data_blobs(self.genesis.manifest))
        return needed

    # --- applying --------------------------------------------------------------------------------------

    def apply(self, link: Link) -> None:
        """Take the next entry. Raises `BadEntry`; then nothing has changed."""
        entry, body = link.entry, link.entry.body
        if self.genesis is None:
            public, run = genesis_key(link), entry.run
        else:
            public, run = self._writer(body), self.run
        check_link(link, self.head, self.term, run, public)
        self._take(entry, self.check(body))
        self.run, self.head, self.term, self.time_ms = run, link.head, entry.term, entry.time_ms
        self.hashes.append(link.hash)
        self.length = entry.position + 1
        if isinstance(body, Plan) and not self.began_ms:
            self.began_ms = entry.time_ms

    def _writer(self, body: Body) -> bytes:
        """The key that must have signed the next entry: the coordinator's, or the one that takes over with it."""
        keys = self.keys[self.coordinator]
        if isinstance(body, Rotated) and body.node == self.coordinator:
            return open_line(body.line, body.node, keys.current)[-1].new
        return keys.current

    def check(self, body: Body) -> Opened:
        """Raise `BadEntry` unless this body may come next; the nodes' statements in it, opened."""
        return check_body(self, body)

    def open_accepted(self, item: Accepted) -> Update:
        """An accepted update with its receipts checked. Raises `BadEntry`."""
        claim = open_claim(self, item.claim)
        work = self.planned[claim.node][claim.plan]
        same = self.plan is not None and work.fragments == self.plan.fragments
        require(same, "takes an update of other fragments than it seals")
        fair = 0 < item.weight <= work.fair_weight(claim)
        require(fair, "gives an update another weight than its own")
        ages = tuple(self.versions[fragment] - version for fragment, version in claim.base)
        receipts = read_receipts(self, claim, item.receipts)
        holders = tuple(dict.fromkeys(receipt.holder for receipt in receipts))
        whole = [receipt.holder for receipt in receipts if receipt.blob == claim.blob]
        held = held_pieces(claim, receipts)
        missing = lacking(claim, held, whole, holders)
        require(not missing, "accepts {:.12}, though {}", claim.blob, missing)
        return Update(claim, item.weight, holders, ages if any(ages) else (), work.place, work, held)

    def _take(self, entry: Entry, opened: Opened) -> None:
        body = entry.body
        if entry.term != self.term:
            self.pace.interrupted()
        if isinstance(body, _MOVE_KEPT):
            self._kept = None
        match body:
            case Genesis():
                self.genesis, self.coordinator = body, node_id(body.coordinator)
                self.keys[self.coordinator] = Keys(body.coordinator)
                self.versions = [0] * len(body.layout.fragments)
                saved = SavedState(0, body.state, body.snapshot, body.snapshot_bytes, ())
                self.snapshots.append(saved)
            case Joined():
                member = self.members.get(body.node)
                if member is None:
                    self.members[body.node] = Member(body.node, body.public, body.name)
                    self.keys.setdefault(body.node, Keys(body.public))
                else:
                    member.present = True
            case Left():
                self.members[body.node].present = False
            case Plan():
                self._take_plan(body, entry)
            case Seal():
                self._take_seal(body, entry, opened.updates)
            case Attestations():
                for word in opened.words:
                    words = self.attested.setdefault(word.at.position, {})
                    member = self.members[word.node]
                    words[member.node] = lean_word(word, self.run, member.node, words)
            case Snapshot():
                saved = SavedState(body.at, body.state, body.blob, body.size_bytes, body.holders)
                self.snapshots.append(saved)
                self._pack()
            case Graft():
                every = tuple(range(len(self.versions)))
                place = self.steps_done
                self.path.append(
                    Step(entry.position, self.round, every, (), totals=self.totals, place=place, graft=body)
                )
                self.versions = [version + 1 for version in self.versions]
            case Rewind():
                while self.path and self.path[-1].position > body.to:
                    self.path.pop()
                self._packed = min(self._packed, len(self.path))
                self.versions = [version + 1 for version in self.versions]
                self.rewound_at = entry.position
                self._close_round()
                self.planned = {}
            case Stopped():
                self.stopped = body.reason
                self._settle_rejected(body.rejected)
                self._close_round()
                self.planned = {}
            case Funded():
                self.funded_micro += body.add_micro
            case Audits():
                self.audit_words += [(entry.position, word) for word in opened.audits]
            case Ban():
                self.bans[body.node] = (entry.position, body)
            case Rotated():
                keys = self.keys[body.node]
                keys.replace(open_line(body.line, body.node, keys.current), entry.position)
            case Revoked():
                self.keys[body.node].revoke()
            case Regions():
                self.regions = body
                self.last_region = max([self.last_region, *(item.number for item in body.items)])
            case Digests():
                self.path[-1] = replace(self.path[-1], digests=by_shard(self.path[-1], body.items))

    def _take_plan(self, plan: Plan, entry: Entry) -> None:
        self.plan, self.plan_position = plan, entry.position
        base = tuple((fragment, self.versions[fragment]) for fragment in plan.fragments)
        now = Standing(self.at, self.steps_done, base, entry.time_ms)
        give_work(self.planned, plan, entry.position, now)
        for item in plan.members:
            assigned = self.members[item.node].assigned
            assigned[:] = [*assigned, item.data][-ASSIGNMENTS_KEPT:]
            self.next_counter = item.data.start + item.data.count

    def _take_seal(self, seal: Seal, entry: Entry, updates: tuple[Update, ...]) -> None:
        for update in updates:
            member = self.members[update.claim.node]
            member.last_sequence = update.claim.sequence
            member.accepted[:] = [*member.accepted, update.claim.sequence][-VERDICTS_KEPT:]
            member.steps, member.updates = member.steps + update.claim.steps, member.updates + 1
            member.counted_to = update.claim.data[-1].start + update.claim.data[-1].count
        self._settle_rejected(seal.rejected)
        fleet = len(self.planned) if seal.whole else len(updates)
        settled = settle_work(self.planned, [update.claim for update in updates])
        totals = added(self.totals, updates, settled, fleet)
        rate, place = self.plan.rate if self.plan else 1.0, self.steps_done
        step = Step(entry.position, seal.round, seal.fragments, updates, seal.whole, totals, rate, place)
        shards = shards_of(self, [update.claim.node for update in updates], seal.fragments)
        self.path.append(replace(step, pairs=seal.pairs, shards=shards) if seal.pairs or shards else step)
        for fragment in seal.fragments:
            self.versions[fragment] += 1
        self.round += 1
        self._close_round()
        gone = [node for node in self.planned if not self.members[node].present]
        self.pace.sealed(entry.time_ms, settled, expire_work(self.planned, self.round, gone))

    def _pack(self) -> None:
        """Steps that no rewind reaches and nobody asks for every round take less memory as bytes."""
        old = bisect_left(self.path, self.kept_states()[0].at, key=position_of)
        for index in range(self._packed, min(old, len(self.path) - STEPS_OPEN)):
            self.path[index] = replace(self.path[index], updates=PackedUpdates(self.path[index].updates))
            self._packed = index + 1

    def _settle_rejected(self, rejected: tuple[Rejected, ...]) -> None:
        for rejection in rejected:
            member = self.members[rejection.node]
            member.last_sequence = max(member.last_sequence, rejection.sequence)

    def _close_round(self) -> None:
        self.plan, self.plan_position = None, -1


@dataclass(frozen=True, slots=True)
class Finding:
    """The first place where a log does not hold."""

    position: int
    what: str


class Follower(Protocol):
    """Somebody who reads a log entry by entry, and keeps its view."""

    @property
    def view(self) -> RunView: ...

    def take(self, link: Link) -> object:
        """The next entry. Raises `BadEntry`; then nothing has changed."""


def verify_log(
    entries: Iterable[bytes], run: RunId | None = None, follower: Follower | None = None
) -> tuple[RunView, Finding | None]:
    """Check a whole log. The view stands after the last good entry; a finding names the first bad one. A `follower`
    is given the entries instead, so that whoever wants more of them than the view reads them once."""
    view = follower.view if follower else RunView()
    take = follower.take if follower else view.apply
    for position, encoded in enumerate(entries):
        try:
            link = read_link(encoded)
            if run is not None and link.entry.run != run:
                raise BadEntry(f"belongs to run {link.entry.run}, not {run}")
            take(link)
        except BadEntry as error:
            return view, Finding(position, str(error))
    return view, None


def head_of(view: RunView, position: int) -> Head:
    """The head as it was at an earlier position."""
    return Head(position, view.hashes[position])
