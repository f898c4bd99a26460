"""When a round closes. A pure decision that explains itself.

In flow the round as the coordinator sees it now; out flows a decision with its reason in words. Invariant: a
rule reads no clock and keeps no state: the same round gives the same decision.

To add a rule: a class like this one and one line in `SEAL_RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shoal.base.ids import NodeId

MAX_DEADLINE_S = 30 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundNow:
    """An open round. Times are seconds on the coordinator's clock."""

    now: float
    opened_at: float
    live: frozenset[NodeId]
    """Planned members whose lease holds."""
    planned: frozenset[NodeId]
    claimed: frozenset[NodeId]
    """Members whose claim is kept and sealable."""


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str
    until: float


@dataclass(frozen=True, slots=True)
class Close:
    reason: str


@dataclass(frozen=True, slots=True)
class Replan:
    """Nobody delivered: plan the same round again with whoever is there."""

    reason: str


Decision = Wait | Close | Replan


class SealRule(Protocol):
    deadline_s: float

    def decide(self, round_now: RoundNow) -> Decision: ...


class AllOrDeadline:
    """Wait for every live member, but not beyond the deadline."""

    def __init__(self, deadline_s: float = 60.0) -> None:
        if not 0 < deadline_s <= MAX_DEADLINE_S:
            raise ValueError(f"deadline_s must be above 0 and at most {MAX_DEADLINE_S:g}, not {deadline_s}")
        self.deadline_s = float(deadline_s)

    def decide(self, round_now: RoundNow) -> Decision:
        deadline = round_now.opened_at + self.deadline_s
        claimed, planned = len(round_now.claimed), len(round_now.planned)
        awaited = round_now.live - round_now.claimed
        count = f"{claimed} of {planned} updates"
        if not awaited and claimed:
            gone = planned - claimed
            return Close(f"{count}" + (f"; {gone} gone" if gone else ""))
        if not awaited:
            return Replan("every member of the plan is gone")
        if round_now.now < deadline:
            return Wait(count, deadline)
        if claimed:
            return Close(f"{count} at the deadline of {self.deadline_s:g} s")
        return Replan(f"no update within {self.deadline_s:g} s")


SEAL_RULES: dict[str, Callable[..., SealRule]] = {"all-or-deadline": AllOrDeadline}
