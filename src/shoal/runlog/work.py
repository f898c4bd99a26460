"""Work that is out: what each member was given, from its plan until it is settled, has expired or was undone.

In flow plans, seals and their times; out flow the open assignments with what was true when they were planned, and
how long members take. Invariant: everything here is a function of the log's entries and their times, so that anyone
recomputes it; an assignment that is closed never opens again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.base.ids import NodeId
from shoal.runlog.entries import Assignment, Claim, DataRange, Plan
from shoal.runlog.weights import claimed_work, weigh, whole_work

MAX_STALENESS = 10_000
NEWS = 0.3
"""How much of a moving mean the latest value makes up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One member's open work, and where the run stood when it was planned."""

    position: int
    """Of the plan."""
    round: int
    step: int
    at: int
    """The position whose state was current."""
    place: int = 0
    """How many seals stood: where on the path the work begins."""
    base: tuple[tuple[int, int], ...]
    """(fragment, version) of every fragment the plan names."""
    weights: str
    time_ms: int
    assignment: Assignment
    shards: int = 0
    """See `Plan.shards`."""

    @property
    def fragments(self) -> tuple[int, ...]:
        return tuple(fragment for fragment, _ in self.base)

    @property
    def data(self) -> DataRange:
        return self.assignment.data

    @property
    def last_round(self) -> int:
        """The last round whose seal may take a claim for this."""
        return self.round + self.assignment.staleness

    def fair_weight(self, claim: Claim) -> int:
        """What a claim for this counts for at most, by the plan's own measure."""
        return weigh(self.weights, claimed_work(claim, self.assignment))

    def whole_weight(self, tokens_a_sample: int, *, spare: bool = False) -> int:
        """What all of it counts for."""
        return weigh(self.weights, whole_work(self.assignment, tokens_a_sample, spare=spare))


def fair_weight(claim: Claim, work: Planned) -> int:
    """What a claim counts for at most: its own work, but no more than one assignment has."""
    return work.fair_weight(claim)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands when work is given out; see `Planned`."""

    at: int
    place: int
    base: tuple[tuple[int, int], ...]
    time_ms: int


@dataclass(slots=True)
class Pace:
    """Moving means of how long things take, in milliseconds by the entries' times; 0 while unknown."""

    seal_ms: float = 0.0
    """From one seal to the next."""
    work_ms: dict[NodeId, float] = field(default_factory=dict)
    """From a member's assignment to the seal that took its claim."""
    last_seal_ms: int | None = None

    def sealed(self, time_ms: int, settled: Iterable[Planned], expired: Iterable[Planned]) -> None:
        """A seal: whose work it settled, and whose it gave up, which took at least so long, and so has to be
        given more time."""
        if self.last_seal_ms is not None:
            self.seal_ms = _moved(self.seal_ms, time_ms - self.last_seal_ms)
        self.last_seal_ms = time_ms
        for work in settled:
            node = work.assignment.node
            self.work_ms[node] = _moved(self.work_ms.get(node, 0.0), time_ms - work.time_ms)
        for work in expired:
            node = work.assignment.node
            self.work_ms[node] = max(self.work_ms.get(node, 0.0), 2.0 * (time_ms - work.time_ms))

    def interrupted(self) -> None:
        """The coordinator was away: the time until the next seal says nothing."""
        self.last_seal_ms = None


def _moved(mean: float, value: int) -> float:
    news = float(max(1, value))
    return news if not mean else mean + NEWS * (news - mean)


OpenWork = dict[NodeId, dict[int, Planned]]
"""Open assignments by member and by the position of their plan."""


def give_work(work: OpenWork, plan: Plan, position: int, now: Standing) -> None:
    for item in plan.members:
        work.setdefault(item.node, {})[position] = Planned(
            position=position,
            round=plan.round,
            step=plan.step,
            at=now.at,
            place=now.place,
            base=now.base,
            weights=plan.weights,
            time_ms=now.time_ms,
            assignment=item,
            shards=plan.shards,
        )


def settle_work(work: OpenWork, claims: Iterable[Claim]) -> list[Planned]:
    """Close what these accepted claims answer, and older work of the same members; the former."""
    settled = []
    for claim in claims:
        plans = work[claim.node]
        settled.append(plans[claim.plan])
        _keep(work, claim.node, {p: one for p, one in plans.items() if p > claim.plan})
    return settled


def expire_work(work: OpenWork, next_round: int, gone: Iterable[NodeId]) -> list[Planned]:
    """Close what cannot be sealed in this round or later, and whatever the members that left had; the former."""
    for node in gone:
        work.pop(node, None)
    expired = []
    for node, plans in list(work.items()):
        late = [one for one in plans.values() if one.last_round < next_round]
        expired += late
        if late:
            _keep(work, node, {p: one for p, one in plans.items() if one.last_round >= next_round})
    return expired


def _keep(work: OpenWork, node: NodeId, plans: dict[int, Planned]) -> None:
    if plans:
        work[node] = plans
    else:
        work.pop(node, None)
