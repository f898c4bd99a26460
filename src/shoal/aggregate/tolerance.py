"""How many updates of a round may be lies, and how many there must be to outvote them.

In flow a recipe's `f` and a count of updates; out flow whole numbers, and refusals with these numbers in them.
Invariant: what a rule is asked to bear is never more than its guard allows for the updates that are there.
"""

from __future__ import annotations

from dataclasses import dataclass

_ROUNDING = 1e-9
"""29% of a hundred are 29, whatever the product of the two comes to."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A rule bears f liars among at least `times` x f + `plus` updates."""

    times: int
    plus: int

    def least(self, liars: int) -> int:
        return self.times * liars + self.plus

    def most(self, updates: int) -> int:
        """How many liars it bears among so many updates; none where there are too few for any."""
        return max(0, (updates - self.plus) // self.times)

    def __str__(self) -> str:
        return f"n >= {self.times}f+{self.plus}"


MAJORITY = Guard(2, 1)
"""2f < n: what no rule can do without."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`f` from a recipe: below 1 a share of the updates that are there, from 1 on so many of them."""

    f: float

    def __post_init__(self) -> None:
        if not 0 <= self.f <= 10_000 or (self.f >= 1 and self.f != int(self.f)):
            raise ValueError(f"f must be a share from 0 to below 0.5, or a whole number, not {self.f}")
        if 0.5 <= self.f < 1:
            raise ValueError(f"f must be below 0.5: no rule outvotes half of the updates, found {self.f}")

    def among(self, updates: int) -> int:
        return int(self.f) if self.f >= 1 else int(self.f * updates + _ROUNDING)

    def refusal(self, rule: str, guard: Guard, nodes: int, bucket: int) -> str:
        """Why a first round of so many nodes is too small; "" if it is not."""
        liars, rows = self.among(nodes), -(-nodes // bucket)
        if self.f and not liars:
            enough = next(n for n in range(nodes, 20_001) if self.among(n))
            return (
                f"f = {self.f:g} of membership.min_nodes = {nodes} is nobody; "
                f"raise min_nodes to {enough}, or set f to 0"
            )
        if rows < guard.least(liars):
            buckets = f", in buckets of {bucket} {rows}," if bucket > 1 else ""
            return (
                f"{rule} needs {guard}: with f = {liars} that is {guard.least(liars)}, and membership.min_nodes = "
                f"{nodes}{buckets} is fewer; raise min_nodes, or lower f"
            )
        return ""
