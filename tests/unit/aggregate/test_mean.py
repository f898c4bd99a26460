import pytest
import torch

from shoal.aggregate import AGGREGATORS, Gathering, Sealed
from shoal.aggregate.base import float32
from shoal.codec.base import DenseSource


class Plain(DenseSource):
    def __init__(self, values: list[float]) -> None:
        self.values = torch.tensor(values)

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        out.copy_(self.values[start:stop] * factor)


def _mean(values: list[list[float]], weights: list[int]) -> torch.Tensor:
    size = len(values[0])
    out, scratch = torch.full((size,), 7.0), torch.full((size,), 9.0)
    updates = [Sealed(Plain(v), weight) for v, weight in zip(values, weights, strict=True)]
    gathering = Gathering(updates=updates, whole=sum(weights), numel=size, slots={})
    AGGREGATORS["mean"]().begin(gathering)(0, size, out, scratch)
    return out


@pytest.mark.parametrize(
    ("values", "weights", "mean"),
    [
        ([[1.0, -2.0]], [5], [1.0, -2.0]),
        ([[1.0, 0.0], [3.0, 8.0]], [1, 1], [2.0, 4.0]),
        ([[1.0, 0.0], [3.0, 8.0]], [1, 3], [2.5, 6.0]),
        ([[4.0], [0.0], [0.0], [0.0]], [1, 1, 1, 1], [1.0]),
    ],
)
def test_each_counts_by_its_weight(values: list[list[float]], weights: list[int], mean: list[float]) -> None:
    assert _mean(values, weights).tolist() == mean


def test_huge_weights_do_not_overflow() -> None:
    assert _mean([[1.0], [2.0]], [10**300, 10**300]).tolist() == [1.5]


def test_float32_rounds_once() -> None:
    assert float32(0.1) == 0.10000000149011612 and float32(1.0) == 1.0
