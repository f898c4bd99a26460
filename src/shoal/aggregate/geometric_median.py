"""The geometric median: the point whose distances from all updates have the least sum."""

from __future__ import annotations

import math

from shoal.aggregate.base import Combine
from shoal.aggregate.rows import Rows, by_weight, dot, lower_median, nearest
from shoal.aggregate.tolerance import MAJORITY, Tolerance
from shoal.aggregate.voting import Before, Voted


class _GeometricMedian:
    name = "geometric-median"
    guard = MAJORITY

    def __init__(self, iterations: int, smoothing: float) -> None:
        if not 1 <= iterations <= 1000:
            raise ValueError(f"iterations must be from 1 to 1000, not {iterations}")
        if not 1e-9 <= smoothing <= 1:
            raise ValueError(f"smoothing must be from 1e-9 to 1, not {smoothing}")
        self._iterations, self._smoothing = iterations, smoothing

    def decide(self, rows: Rows, liars: int) -> Combine:
        shares = _beginning(rows)
        for _ in range(self._iterations):
            distances = distances_from(rows.products, shares)
            least = self._smoothing * lower_median(distances)
            if not least:
                break  # Half of them are here already.
            shares = by_weight([least / max(least, distance) for distance in distances], rows.weights)
        return rows.sum_of(shares)


def _beginning(rows: Rows) -> list[float]:
    """The mean of a majority around the row that is nearest to all: no liar, however far, is in it."""
    lengths = [math.fsum(map(math.sqrt, row)) for row in rows.apart]
    middle = nearest(lengths, 1)
    around = [
        math.fsum(row)
        for row in zip(*(_majority(rows, i) for i, share in enumerate(middle) if share), strict=True)
    ]
    return by_weight(around, rows.weights)


def _majority(rows: Rows, middle: int) -> list[float]:
    return nearest(rows.apart[middle], len(rows) // 2 + 1)


def distances_from(products: list[list[float]], shares: list[float]) -> list[float]:
    """How far each row is from so much of each row."""
    along = [dot(row, shares) for row in products]
    inner = dot(along, shares)
    return [math.sqrt(max(0.0, math.fsum((row[i], -2 * along[i], inner)))) for i, row in enumerate(products)]


def geometric_median(
    f: float = 0.3,
    iterations: int = 8,
    smoothing: float = 0.001,
    even: bool = False,
    distinct: bool = False,
    bucket: int = 1,
    nnm: bool = False,
) -> Voted:
    """Weiszfeld's steps, so many, from the middle of a majority (arXiv 1912.13445). A distance counts as no less than
    `smoothing` times the median one, so that a row is not its own reason. Weights are masses, and half of them decide:
    `f` matters to `nnm` alone. Raise `iterations` if the last ones still move it, as in fleets that disagree."""
    return Voted(_GeometricMedian(iterations, smoothing), Tolerance(f), Before(even, distinct, bucket, nnm))
