"""Robust aggregation: how a rule, what it bears and what comes before it make an aggregator.

In flow a round's updates; out flows their aggregate. Invariant: no choice of a minority's updates moves the aggregate
further from the honest ones than these are from one another, times what the rule's guarantee says.

Rules whose round has fewer updates than their guard needs bear as many liars as it allows for; where it allows for
none, they are the mean. What a weight counts for, each rule says; a vote, wherever one is held, is one an update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shoal.aggregate.base import Combine, Gathering
from shoal.aggregate.mixing import buckets, distinct, even_lengths, nearest_neighbours
from shoal.aggregate.rows import Rows, rows_of
from shoal.aggregate.tolerance import MAJORITY, Guard, Tolerance


class Rule(Protocol):
    """What rows come to when some of them lie."""

    @property
    def name(self) -> str: ...
    @property
    def guard(self) -> Guard: ...
    def decide(self, rows: Rows, liars: int) -> Combine:
        """The aggregate; there are as many rows as the guard wants for so many liars."""


@dataclass(frozen=True, slots=True)
class Before:
    """What is done to the updates before the rule, in this order."""

    even: bool = False
    """Bring all to the median length, and leave out those without any."""
    distinct: bool = False
    """Count those that say the same once."""
    bucket: int = 1
    """Take means of so many."""
    nnm: bool = False
    """Mix each with its nearest neighbours."""

    def __post_init__(self) -> None:
        if not 1 <= self.bucket <= 1000:
            raise ValueError(f"bucket must be from 1 to 1000, not {self.bucket}")

    def rows(self, rows: Rows, liars: int) -> tuple[Rows, int]:
        """Rows to vote on, and how many of them may be lies: who was left out, or counted once, was one."""
        came = len(rows)
        rows = even_lengths(rows) if self.even else rows
        rows = distinct(rows) if self.distinct else rows
        liars = max(0, liars - (came - len(rows)))
        rows = buckets(rows, self.bucket)
        liars = min(liars, MAJORITY.most(len(rows)))
        return nearest_neighbours(rows, liars) if self.nnm else rows, liars


@dataclass(frozen=True, slots=True)
class Voted:
    """An aggregator: a rule, and what comes before it."""

    rule: Rule
    tolerance: Tolerance
    before: Before
    reads: tuple[str, ...] = ()

    def begin(self, gathering: Gathering) -> Combine:
        wanted = self.tolerance.among(len(gathering.updates))
        rows, liars = self.before.rows(rows_of(gathering), wanted)
        if len(rows) < self.rule.guard.least(0):
            return rows.mean()
        return self.rule.decide(rows, min(liars, self.rule.guard.most(len(rows))))

    def refusal(self, nodes: int) -> str:
        return self.tolerance.refusal(self.rule.name, self.rule.guard, nodes, self.before.bucket)
