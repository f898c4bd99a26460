"""When a round closes, and how late an update may come. Pure decisions that explain themselves.

In flow the round as the coordinator sees it now; out flows a decision with its reason in words. Invariant: a
rule reads no clock and keeps no state: the same round gives the same decision. Synchronous, quorum and asynchronous
training differ in nothing but the rule.

To add a rule: a class like these and one line in `SEAL_RULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from shoal.base.ids import NodeId
from shoal.runlog.work import MAX_STALENESS

MAX_DEADLINE_S = 30 * 86400.0
SHORTEST_TICK_S, LONGEST_TICK_S = 0.05, 0.5
FIRST_STALENESS = 1000
"""What an adaptive bound allows a node of whose speed nothing is known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a planner wants a round to wait; a rule's own deadline is still the last."""

    deadline_s: float
    share: float
    """Of the round's work, how much has come."""
    enough_at: float | None
    """When it was enough; None while it is not."""
    grace_s: float
    """What the others are waited for then."""


class RoundNow(msgspec.Struct, frozen=True, kw_only=True):
    """An open round. Times are seconds on the coordinator's clock."""

    now: float
    opened_at: float
    live: frozenset[NodeId]
    """Members with work out whose lease holds."""
    planned: frozenset[NodeId]
    """Members with work out, of this round or an earlier one."""
    claimed: frozenset[NodeId]
    """Members whose claim is kept and sealable."""
    arrived_at: tuple[float, ...] = ()
    """When those claims came, in order."""
    sealed_at: float = -math.inf
    """When the last round was sealed."""
    timing: Timing | None = None
    """What the planner says, where it plans by what was measured."""


class Wait(msgspec.Struct, frozen=True):
    reason: str
    until: float


class Close(msgspec.Struct, frozen=True):
    reason: str


class Replan(msgspec.Struct, frozen=True):
    """Nobody delivered: plan the same round again with whoever is there."""

    reason: str


Decision = Wait | Close | Replan


@dataclass(frozen=True, slots=True)
class NodePace:
    """How long a node takes for its work, and the run from seal to seal; 0 while unknown."""

    work_ms: float
    seal_ms: float


class SealRule(Protocol):
    deadline_s: float
    most_stale: int
    """The latest that an update may come, in rounds after its own; 0 if it must come in time."""
    attest_every: int
    """Every so many seals the state is attested, evaluated and, where that is due, saved."""
    plans_at_once: bool
    """True if whoever has no work gets some while a round is open."""
    shares_fleet: bool
    """True if an update moves the state by its share of the whole fleet, not of those that were sealed with it."""
    min_interval_s: float
    """Between two plans of one round, at least."""
    tick_s: float
    """How often the rule wants to be asked."""

    def decide(self, round_now: RoundNow) -> Decision: ...

    def staleness(self, pace: NodePace) -> int:
        """How many rounds late a node's next update may be."""


def _checked(name: str, value: float, low: float, high: float) -> float:
    """A number within (low, high]. Raises ValueError in words."""
    if not low < value <= high:
        raise ValueError(f"{name} must be above {low:g} and at most {high:g}, not {value}")
    return float(value)


def _checked_count(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} to {high}, not {value}")
    return value


def _tick(wait_s: float) -> float:
    """Fine enough to end a wait of this length in time."""
    return min(max(wait_s / 4, SHORTEST_TICK_S), max(LONGEST_TICK_S, wait_s / 20))


class AllOrDeadline:
    """Wait for every live member, but not beyond the deadline."""

    most_stale = 0
    attest_every = 1
    plans_at_once = shares_fleet = False
    min_interval_s = 0.0

    def __init__(self, deadline_s: float = 60.0) -> None:
        self.deadline_s = _checked("deadline_s", deadline_s, 0, MAX_DEADLINE_S)
        self.tick_s = max(LONGEST_TICK_S, deadline_s / 300)  # Of a long wait, a little more is no matter.

    def decide(self, round_now: RoundNow) -> Decision:
        closed = _all_live(round_now) or _enough(round_now)
        return closed or _at_deadline(round_now, self.deadline_s, _count(round_now))

    def staleness(self, pace: NodePace) -> int:
        return 0


class Quorum:
    """Seal once `quorum` updates are there (below 1 a share of those at work, else a number) and `grace_s` has
    passed, in which others may still come. One that misses it may come up to `staleness` rounds later, and then
    has an age."""

    attest_every = 1
    shares_fleet = False
    min_interval_s = 1.0

    def __init__(
        self, quorum: float = 0.75, grace_s: float = 2.0, deadline_s: float = 60.0, staleness: int = 1
    ) -> None:
        self.quorum = _checked("quorum", quorum, 0, 1_000_000)
        if not 0 <= grace_s <= MAX_DEADLINE_S:
            raise ValueError(f"grace_s must be 0 to {MAX_DEADLINE_S:g}, not {grace_s}")
        self.grace_s = float(grace_s)
        self.deadline_s = _checked("deadline_s", deadline_s, 0, MAX_DEADLINE_S)
        self.most_stale = _checked_count("staleness", staleness, 0, MAX_STALENESS)
        self.plans_at_once = staleness > 0
        self.tick_s = _tick(grace_s)

    def decide(self, round_now: RoundNow) -> Decision:
        if (decision := _all_live(round_now) or _enough(round_now)) is not None:
            return decision
        needed = self.needed(len(round_now.planned))
        count = f"{_count(round_now)}, {needed} needed"
        if len(round_now.arrived_at) < needed:
            return _at_deadline(round_now, self.deadline_s, count)
        until = round_now.arrived_at[needed - 1] + self.grace_s
        if round_now.now >= until:
            return Close(f"{count}; {self.grace_s:g} s of grace")
        return _at_deadline(round_now, self.deadline_s, f"{count}; in the time of grace", until)

    def needed(self, planned: int) -> int:
        wanted = math.ceil(self.quorum * planned) if self.quorum < 1 else int(self.quorum)
        return max(1, min(wanted, planned))

    def staleness(self, pace: NodePace) -> int:
        return self.most_stale


class Arrivals:
    """Seal whatever has arrived, at least `min_interval_s` apart. An update may be `staleness` rounds late; with
    `adaptive`, as late as the node's own speed makes it, times `slack`, and `staleness` where that is more."""

    plans_at_once = shares_fleet = True
    deadline_s = MAX_DEADLINE_S

    def __init__(
        self,
        min_interval_s: float = 1.0,
        staleness: int = 8,
        adaptive: bool = True,
        slack: float = 2.0,
        attest_every: int = 8,
    ) -> None:
        self.min_interval_s = _checked("min_interval_s", min_interval_s, 0, MAX_DEADLINE_S)
        self._staleness = _checked_count("staleness", staleness, 1, MAX_STALENESS)
        self._adaptive = adaptive
        self._slack = _checked("slack", slack, 0, 100)
        self.attest_every = _checked_count("attest_every", attest_every, 1, 10_000)
        self.most_stale = MAX_STALENESS if adaptive else self._staleness
        self.tick_s = _tick(min_interval_s)

    def decide(self, round_now: RoundNow) -> Decision:
        claimed = len(round_now.claimed)
        due = round_now.sealed_at + self.min_interval_s
        if claimed and round_now.now >= due:
            return Close(f"{claimed} arrived of {len(round_now.planned)} at work")
        if claimed:
            return Wait(f"{claimed} arrived, sealed {self.min_interval_s:g} s after the last", due)
        if not round_now.live:
            return Replan("everyone with work is gone")
        # A node that has lost its work does it again; only its silence is not waited for.
        return Wait(f"the next of {len(round_now.planned)} updates", round_now.now + self.min_interval_s)

    def staleness(self, pace: NodePace) -> int:
        if not self._adaptive:
            return self._staleness
        if not pace.work_ms or not pace.seal_ms:
            return max(self._staleness, FIRST_STALENESS)
        # Seals come no closer than the minimum, whatever the mean of the last few says.
        seal_ms = max(pace.seal_ms, 1000 * self.min_interval_s)
        bound = math.ceil(self._slack * pace.work_ms / seal_ms) + 1
        return min(max(self._staleness, bound), MAX_STALENESS)


def _count(round_now: RoundNow) -> str:
    return f"{len(round_now.claimed)} of {len(round_now.planned)} updates"


def _all_live(round_now: RoundNow) -> Close | Replan | None:
    """What there is to do once nobody is left to wait for."""
    if round_now.live - round_now.claimed:
        return None
    if not round_now.claimed:
        return Replan("every member of the plan is gone")
    gone = len(round_now.planned) - len(round_now.claimed)
    return Close(_count(round_now) + (f"; {gone} gone" if gone else ""))


def _enough(round_now: RoundNow) -> Close | None:
    """The slowest are not waited for once a planned round has enough."""
    timing = round_now.timing
    if timing is None or timing.enough_at is None or not round_now.claimed:
        return None
    if round_now.now < timing.enough_at + timing.grace_s:
        return None
    return Close(f"{_count(round_now)}, {timing.share:.0%} of the work; {timing.grace_s:.1f} s of grace")


def _at_deadline(round_now: RoundNow, deadline_s: float, count: str, until: float = math.inf) -> Decision:
    """Wait until the deadline (or `until`), and then go on with what there is."""
    if round_now.timing is not None:
        deadline_s = min(deadline_s, round_now.timing.deadline_s)
    deadline = round_now.opened_at + deadline_s
    if round_now.now < deadline:
        return Wait(count, min(deadline, until))
    if round_now.claimed:
        return Close(f"{count} at the deadline of {deadline_s:g} s")
    return Replan(f"no update within {deadline_s:g} s")


SEAL_RULES: dict[str, Callable[..., SealRule]] = {
    "all-or-deadline": AllOrDeadline,
    "arrivals": Arrivals,
    "quorum": Quorum,
}
