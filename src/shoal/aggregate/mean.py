"""The weighted mean: each update counts by its weight."""

from __future__ import annotations

import torch

from shoal.aggregate.base import Combine, Gathering, float32


class WeightedMean:
    def begin(self, gathering: Gathering) -> Combine:
        sources = [update.source for update in gathering.updates]
        shares = [float32(update.weight / gathering.whole) for update in gathering.updates]

        def combine(start: int, stop: int, out: torch.Tensor, scratch: torch.Tensor) -> None:
            sources[0].decode(start, stop, shares[0], out)
            for source, share in zip(sources[1:], shares[1:], strict=True):
                source.accumulate(start, stop, share, out, scratch)

        return combine
