"""Centred clipping: the mean of updates as seen from where the model has been going, none further than most."""

from __future__ import annotations

import math

from shoal.aggregate.base import Combine
from shoal.aggregate.geometric_median import distances_from
from shoal.aggregate.rows import Rows, lower_median
from shoal.aggregate.tolerance import MAJORITY, Tolerance
from shoal.aggregate.voting import Before, Voted

_NEGLIGIBLE = 2.0**-60
"""A momentum shorter than the median update by this factor says nothing."""
_FURTHEST = 2.0**60
"""So many times its length are gone along the momentum at most: a liar's update may be longer than float32 holds."""


class _CentredClipping:
    name = "centred-clipping"
    guard = MAJORITY

    def __init__(self, radius: float, iterations: int) -> None:
        if not 0.01 <= radius <= 1000:
            raise ValueError(f"radius must be from 0.01 to 1000, not {radius}")
        if not 1 <= iterations <= 1000:
            raise ValueError(f"iterations must be from 1 to 1000, not {iterations}")
        self._radius, self._iterations = radius, iterations

    def decide(self, rows: Rows, liars: int) -> Combine:
        products, count = rows.products_and_momentum, len(rows)
        shares = [0.0] * count + _warm_start(products, count)
        for _ in range(self._iterations):
            distances = distances_from(products, shares)[:count]
            bound = self._radius * lower_median(distances)
            steps = [
                weight * (1.0 if distance <= bound else bound / distance)
                for distance, weight in zip(distances, rows.weights, strict=True)
            ]
            left = 1 - math.fsum(steps)
            shares = [share * left for share in shares]
            shares[:count] = [share + step for share, step in zip(shares, steps, strict=False)]
        return rows.sum_of(shares[:count], math.fsum(shares[count:]))


def _warm_start(products: list[list[float]], count: int) -> list[float]:
    """How much of the momentum to begin at, if there is one: as far along it as the median row goes."""
    if len(products) == count:
        return []
    length, median = products[count][count], lower_median([products[i][i] for i in range(count)])
    if length <= median * _NEGLIGIBLE * _NEGLIGIBLE:
        return [0.0]
    along = lower_median([products[count][i] / length for i in range(count)])
    return [max(-_FURTHEST, min(_FURTHEST, along))]


def centred_clipping(
    f: float = 0.3,
    radius: float = 1.0,
    iterations: int = 3,
    even: bool = False,
    distinct: bool = False,
    bucket: int = 1,
    nnm: bool = False,
) -> Voted:
    """From a centre, the mean of the ways to all rows by weight, none longer than `radius` times the median way;
    then again from there (arXiv 2012.10333). It begins on the outer momentum, as far along it as the median row, so
    that liars would have to pull for many rounds; without momentum, at zero. `f` matters to `nnm` alone."""
    return Voted(
        _CentredClipping(radius, iterations),
        Tolerance(f),
        Before(even, distinct, bucket, nnm),
        reads=("momentum",),
    )
