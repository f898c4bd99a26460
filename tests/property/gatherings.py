"""Rounds of plain values, and what an aggregator makes of them."""

from __future__ import annotations

import torch

from shoal.aggregate import AGGREGATORS, Gathering, Sealed
from shoal.codec.base import DenseSource


class Plain(DenseSource):
    def __init__(self, values: list[float]) -> None:
        self.values = torch.tensor(values, dtype=torch.float32)

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        out.copy_(self.values[start:stop] * factor)


def gathered(
    updates: list[list[float]],
    weights: list[int] | None = None,
    whole: int = 0,
    age: int = 0,
    momentum: torch.Tensor | None = None,
) -> Gathering:
    weights = weights or [1] * len(updates)
    return Gathering(
        updates=[Sealed(Plain(row), weight, age) for row, weight in zip(updates, weights, strict=True)],
        whole=whole or sum(weights),
        numel=len(updates[0]),
        slots={} if momentum is None else {"momentum": momentum},
    )


def combined(kind: str, gathering: Gathering) -> torch.Tensor:
    """The aggregate of a round of at most one chunk."""
    out, scratch = torch.full((gathering.numel,), 7.0), torch.full((gathering.numel,), float("nan"))
    AGGREGATORS[kind]().begin(gathering)(0, gathering.numel, out, scratch)
    return out
