"""The weighted mean: each update counts by its weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.aggregate.base import Combine, float32
from shoal.codec.base import Source


class WeightedMean:
    def begin(self, sources: Sequence[Source], weights: Sequence[int], numel: int) -> Combine:
        total = sum(weights)
        shares = [float32(weight / total) for weight in weights]

        def combine(start: int, stop: int, out: torch.Tensor, scratch: torch.Tensor) -> None:
            sources[0].decode(start, stop, shares[0], out)
            for source, share in zip(sources[1:], shares[1:], strict=True):
                source.decode(start, stop, share, scratch)
                out.add_(scratch)

        return combine
