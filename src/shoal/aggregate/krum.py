"""Krum: believe whoever has the nearest neighbours. Multi-Krum: the mean of those who have."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.aggregate.base import Combine
from shoal.aggregate.rows import Rows, by_weight, nearest
from shoal.aggregate.tolerance import Guard, Tolerance
from shoal.aggregate.voting import Before, Voted

KRUM_GUARD = Guard(2, 3)


def scores(apart: list[list[float]], liars: int) -> list[float]:
    """For each row, the sum of its squared distances from the n - f nearest, itself among them."""
    kept = len(apart) - liars
    return [math.fsum(sorted(row)[:kept]) for row in apart]


class _Krum:
    name = "krum"
    guard = KRUM_GUARD

    def decide(self, rows: Rows, liars: int) -> Combine:
        best = nearest(scores(rows.apart, liars), 1)
        return rows.sum_of(best)


@dataclass(frozen=True, slots=True)
class MultiKrum:
    name: str = "multi-krum"
    guard: Guard = KRUM_GUARD

    def decide(self, rows: Rows, liars: int) -> Combine:
        chosen = nearest(scores(rows.apart, liars), len(rows) - liars)
        return rows.sum_of(by_weight(chosen, rows.weights))


def krum(
    f: float = 0.3, even: bool = False, distinct: bool = False, bucket: int = 1, nnm: bool = False
) -> Voted:
    """One row: that with the least sum of squared distances from its n - f nearest (arXiv 1703.02757). It throws away
    the work of all others; take it with `nnm`, or take `multi-krum`. Weights count in mixtures before it only."""
    return Voted(_Krum(), Tolerance(f), Before(even, distinct, bucket, nnm))


def multi_krum(
    f: float = 0.3, even: bool = False, distinct: bool = False, bucket: int = 1, nnm: bool = False
) -> Voted:
    """The mean, by weight, of the n - f rows that Krum likes best. As cheap as rules come; liars who stay as near as
    honest updates are from one another are among the chosen."""
    return Voted(MultiKrum(), Tolerance(f), Before(even, distinct, bucket, nnm))
