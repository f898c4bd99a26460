"""The weighted mean: each update counts by its weight."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.aggregate.base import Combine, Gathering, float32
from shoal.codec.base import Source
from shoal.codec.packed import WeightedSum


class WeightedMean:
    reads: tuple[str, ...] = ()

    def begin(self, gathering: Gathering) -> Combine:
        sources = [update.source for update in gathering.updates]
        return weighted_sum(sources, [update.weight / gathering.whole for update in gathering.updates])


def weighted_sum(sources: Sequence[Source], factors: Sequence[float]) -> Combine:
    """Each source times its factor, added in order: what every mean comes down to."""
    return WeightedSum(sources, [float32(factor) for factor in factors])
