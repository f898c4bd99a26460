import pytest

from shoal.aggregate.base import float32

from .gatherings import combined, gathered


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
    assert combined("mean", gathered(values, weights)).tolist() == mean


def test_huge_weights_do_not_overflow() -> None:
    assert combined("mean", gathered([[1.0], [2.0]], [10**300, 10**300])).tolist() == [1.5]


def test_float32_rounds_once() -> None:
    assert float32(0.1) == 0.10000000149011612 and float32(1.0) == 1.0
