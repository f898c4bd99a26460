"""The machines that were lent to one run of regions: what they said, who leads a region, and where each belongs.

In flow machines' words, again and again, and the run's log; out flow decisions for that log, and each machine's place.
Invariant: the log decides: a place is never other than it says, so that a coordinator that starts again goes on with
what was decided; a region's ticket is known here alone, and shown to that region's machines only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shoal.base.ids import NodeId
from shoal.measure.reporting import MAX_PEERS_TOLD
from shoal.measure.telemetry import Telemetry
from shoal.planner.pool import ASK_AGAIN_S
from shoal.planner.regrouping import Machine, Pooled, regroup
from shoal.runlog.entries import PlannedRegion, Regions
from shoal.runlog.view import RunView
from shoal.wire.messages import PeerVitals, Vitals

QUICKEST_S = 0.2
LOOK_S = 1.0
"""Between two decisions."""
STARTS_S = 120.0
"""How long a hub whose machine is here may take to be in the run and to be reached: to begin, or to come back."""
MOVE_S = 600.0
"""Between two decisions that move machines which have a region."""
EACH_S = 0.1
"""For so long after a decision, times the number of machines, only lost hubs are replaced: entries name everybody."""

GONE_KEPT = 4096
"""Machines that left and whose presence is remembered: who comes and goes makes a poor hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a machine says with an offer."""

    node: NodeId
    address: str = ""
    """Where others can reach it if it is a hub; "" if they cannot."""
    label: str = ""
    up_bytes_s: float = 0.0
    trips: Mapping[NodeId, float] = field(default_factory=dict)
    """Round trips that it measured; 0 to those it could not reach."""
    serves: int = 0
    """The number of the region that it is the hub of, once that is open."""
    ticket: str = ""
    """That region's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a machine belongs."""

    reason: str
    region: int | None = None
    leads: bool = False
    ticket: str | None = None
    """The region's, once its hub has handed it over."""


class RegionPool:
    """One run's. `lease_s` is for how long a hub may be silent."""

    def __init__(self, lease_s: float, now: float) -> None:
        self._lease_s = lease_s
        self._began = now
        self._words: dict[NodeId, tuple[Word, float]] = {}
        self._first_at: dict[NodeId, float] = {}
        self._heard_at = now
        self._gone: dict[NodeId, None] = {}
        """Who left, the first one first."""
        self._up_at: dict[int, float] = {}
        """By number, when a region's hub was last seen in the run."""
        self._tickets: dict[int, str] = {}
        self._telemetry = Telemetry()
        self._looked_at = -LOOK_S
        self._decided_at = self._moved_at = now
        self._turn = 0
        self._targets: list[tuple[NodeId, str]] = []
        """Who may be probed, and where, as of the last look."""
        self._placed: tuple[Regions | None, dict[NodeId, PlannedRegion]] = (None, {})
        """Who is in which region, by the decision that says so."""

    @property
    def ask_again_s(self) -> float:
        """Often enough for a lease to tell who is gone."""
        return min(ASK_AGAIN_S, max(QUICKEST_S, self._lease_s / 3))

    def offer(self, word: Word, view: RunView, now: float) -> None:
        """A machine says that it is here."""
        if not self._words or now - self._heard_at > self._lease_s:
            self._began = now  # After a pause, or of the coordinator's: let everybody come back.
            self._up_at.clear()
        self._heard_at = now
        self._gone.pop(word.node, None)
        self._words[word.node] = (word, now)
        self._first_at.setdefault(word.node, now)
        trips = [(node, trip) for node, trip in sorted(word.trips.items()) if trip > 0]
        told = tuple(PeerVitals(node, trip, 0.0, 0.0) for node, trip in trips)
        self._telemetry.heard(word.node, Vitals(up_bytes_s=word.up_bytes_s, peers=told), self._words)
        if word.ticket and self._leads(word.node, word.serves, view):
            self._tickets[word.serves] = word.ticket

    def withdraw(self, node: NodeId) -> None:
        if self._words.pop(node, None) is not None:
            self._gone[node] = None
        self._first_at.pop(node, None)
        while len(self._gone) > GONE_KEPT:
            longest = next(iter(self._gone))
            del self._gone[longest]
            self._telemetry.forget(longest)

    def probes(self, node: NodeId) -> dict[NodeId, str]:
        """Machines whose round trips it should measure: a few, others each time."""
        known, count = self._targets, len(self._targets)
        self._turn += 1
        turn = [known[(self._turn + place) % count] for place in range(min(count, MAX_PEERS_TOLD + 1))]
        return dict([(other, address) for other, address in turn if other != node][:MAX_PEERS_TOLD])

    def place(self, node: NodeId, view: RunView) -> Place:
        """As the log has it."""
        if self._placed[0] is not view.regions:
            self._placed = (view.regions, {one: item for item in _standing(view) for one in item.members})
        region = self._placed[1].get(node)
        if region is None:
            return Place(reason=self._missing())
        leads, ticket = region.hub == node, self._tickets.get(region.number)
        waits = "" if ticket or leads else f", whose hub {region.hub[:8]} is not ready yet"
        words = f"{'hub' if leads else 'member'} of region {region.number}{waits}: {region.reason}"
        return Place(reason=words, region=region.number, leads=leads, ticket=ticket)

    def decide(self, view: RunView, live: Collection[NodeId], now: float) -> Regions | None:
        """What is to be logged now, if anything; `live` are the run's own members, which are hubs."""
        if now - self._looked_at < LOOK_S:
            return None
        self._looked_at = now
        standing = _standing(view)
        self._forget(standing, live, now)
        self._telemetry.look(self._words, now)
        said = (word for word, _ in self._words.values())
        self._targets = sorted((word.node, word.address) for word in said if word.address)
        if standing and now - self._began < 2 * self._lease_s:
            return None
        if not standing and not self._is_settled(now):
            return None
        able, may_move = self._able(), now - self._moved_at > MOVE_S
        lost = self._lost(standing, live, able, now)
        if not lost and now - self._decided_at < self._lease_s + EACH_S * len(self._words):
            return None
        decided = regroup(
            Pooled(
                machines=self._machines(standing, live, able, now),
                rtt_s=self._telemetry.rtt_s,
                standing=standing,
                lost=lost,
                last=view.last_region,
                may_move=may_move,
            )
        )
        self._moved_at = now if may_move else self._moved_at
        self._decided_at = now if decided is not None else self._decided_at
        return decided

    def _machines(
        self,
        standing: tuple[PlannedRegion, ...],
        live: Collection[NodeId],
        able: Collection[NodeId],
        now: float,
    ) -> dict[NodeId, Machine]:
        """Who is here, and either in a region or known well enough to be given one; and hubs that are in the run,
        though they say nothing to the pool."""
        placed = {node for region in standing for node in region.members}
        silent = {region.hub for region in standing if region.hub in live} - {*self._words}
        quiet = {
            node: Machine(facts=self._telemetry.facts(node), able=False, label="") for node in sorted(silent)
        }
        return quiet | {
            node: Machine(facts=self._telemetry.facts(node), able=node in able, label=word.label)
            for node, (word, _) in sorted(self._words.items())
            if node in placed or self._is_measured(word, now)
        }

    def _able(self) -> set[NodeId]:
        """Who says where it can be reached, and was not missed there by everybody else who tried."""
        reached: dict[NodeId, bool] = {}
        for word, _ in self._words.values():
            for node, trip in word.trips.items():
                if node != word.node:
                    reached[node] = reached.get(node, False) or trip > 0
        return {node for node, (word, _) in self._words.items() if word.address and reached.get(node, True)}

    def _is_measured(self, word: Word, now: float) -> bool:
        alone = all(node == word.node for node, _ in self._targets[:2])
        told = bool(word.label or word.trips) or alone
        return told or now - self._first_at[word.node] > 4 * self._lease_s

    def _is_settled(self, now: float) -> bool:
        """Before the first decision: nobody has come for a lease, or the first has waited for a few."""
        came = sorted(self._first_at.values())
        return bool(came) and (now - came[-1] > self._lease_s or now - came[0] > 4 * self._lease_s)

    def _lost(
        self,
        standing: tuple[PlannedRegion, ...],
        live: Collection[NodeId],
        able: Collection[NodeId],
        now: float,
    ) -> dict[NodeId, str]:
        """Hubs that are not in the run: since their machines are silent, or for too long; or whom nobody reaches."""
        self._up_at = {one.number: self._up_at.get(one.number, now) for one in standing}
        self._tickets = {number: told for number, told in self._tickets.items() if number in self._up_at}
        found = {}
        for region in standing:
            hub, there = region.hub, region.hub in live
            said = self._words.get(hub)
            if there and (said is None or hub in able):
                self._up_at[region.number] = now
            elif not there and now - (said[1] if said else self._began) > self._lease_s:
                found[hub] = f"was silent for {self._lease_s:g} s"
                self.withdraw(hub)
            elif now - self._up_at[region.number] > STARTS_S:
                found[hub] = f"was {'out of reach' if there else 'not in the run'} for {STARTS_S:g} s"
        return found

    def _forget(self, standing: tuple[PlannedRegion, ...], live: Collection[NodeId], now: float) -> None:
        leading = {region.hub for region in standing} & {*live}
        for node, (_, at) in list(self._words.items()):
            if now - at > 2 * self._lease_s and node not in leading:
                self.withdraw(node)

    def _leads(self, node: NodeId, number: int, view: RunView) -> bool:
        return any(one.number == number and one.hub == node for one in _standing(view))

    def _missing(self) -> str:
        """Why somebody has no region yet."""
        nobody = "nobody here can be a hub: lend a machine that others can reach, with --hub-address"
        return "it is about to be given a region" if self._targets else nobody


def _standing(view: RunView) -> tuple[PlannedRegion, ...]:
    return view.regions.items if view.regions else ()
