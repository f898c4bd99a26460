"""Updates of plain values, dense or sparse, and what an aggregator makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shoal.aggregate import AGGREGATORS, Gathering, Sealed
from shoal.codec.base import CHUNK, DenseSource


class Plain(DenseSource):
    """Values as they are; those that are None were left out."""

    def __init__(self, values: Sequence[float | None] | torch.Tensor) -> None:
        if isinstance(values, torch.Tensor):
            self.values, self.mask = values, torch.ones_like(values)
        else:
            self.values = torch.tensor([value or 0.0 for value in values], dtype=torch.float32)
            self.mask = torch.tensor([float(value is not None) for value in values])

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        out.copy_(self.values[start:stop] * factor)

    def sent(self, start: int, stop: int, out: torch.Tensor) -> None:
        out.copy_(self.mask[start:stop])


def gathered(
    values: Sequence[Sequence[float | None] | torch.Tensor],
    weights: Sequence[int] | None = None,
    whole: int = 0,
    ages: Sequence[int] | None = None,
    momentum: torch.Tensor | None = None,
) -> Gathering:
    weights = weights or [1] * len(values)
    updates = [
        Sealed(Plain(row), weight, age)
        for row, weight, age in zip(values, weights, ages or [0] * len(values), strict=True)
    ]
    slots = {} if momentum is None else {"momentum": momentum}
    return Gathering(updates=updates, whole=whole or sum(weights), numel=len(values[0]), slots=slots)


def combined(kind: str, gathering: Gathering, **parameters: float) -> torch.Tensor:
    """The whole aggregate, chunk by chunk, in buffers that begin full of rubbish."""
    out, scratch = torch.full((gathering.numel,), 7.0), torch.full((CHUNK,), float("nan"))
    combine = AGGREGATORS[kind](**parameters).begin(gathering)
    for start in range(0, gathering.numel, CHUNK):
        stop = min(start + CHUNK, gathering.numel)
        combine(start, stop, out[start:stop], scratch[: stop - start])
    return out
