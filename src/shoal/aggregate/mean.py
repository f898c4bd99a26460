"""The weighted mean: each update counts by its weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.aggregate.base import Combine, Gathering, float32
from shoal.codec.base import Source


class WeightedMean:
    reads: tuple[str, ...] = ()

    def begin(self, gathering: Gathering) -> Combine:
        sources = [update.source for update in gathering.updates]
        return weighted_sum(sources, [update.weight / gathering.whole for update in gathering.updates])


def weighted_sum(sources: Sequence[Source], factors: Sequence[float]) -> Combine:
    """Each source times its factor, added in order: what every mean comes down to."""
    rounded = [float32(factor) for factor in factors]

    def combine(start: int, stop: int, out: torch.Tensor, scratch: torch.Tensor) -> None:
        sources[0].decode(start, stop, rounded[0], out)
        for source, factor in zip(sources[1:], rounded[1:], strict=True):
            source.accumulate(start, stop, factor, out, scratch)

    return combine
