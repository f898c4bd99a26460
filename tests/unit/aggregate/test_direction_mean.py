import math

import torch

from .gatherings import combined, gathered


def _length(values: torch.Tensor) -> float:
    return math.sqrt(float((values.double() ** 2).sum()))


def test_updates_at_right_angles_keep_their_length() -> None:
    merged = combined("direction-mean", gathered([[3.0, 0.0], [0.0, 3.0]]))
    assert torch.allclose(merged, torch.tensor([3.0, 3.0]) / math.sqrt(2))
    assert math.isclose(_length(combined("mean", gathered([[3.0, 0.0], [0.0, 3.0]]))), 3 / math.sqrt(2))


def test_directions_count_by_weight_and_lengths_apart_from_them() -> None:
    merged = combined("direction-mean", gathered([[9.0, 0.0], [0.0, 1.0]], [1, 3]))
    assert math.isclose(_length(merged), 3.0, rel_tol=1e-6)
    assert math.isclose(float(merged[1] / merged[0]), 3.0, rel_tol=1e-6)


def test_part_of_the_fleet_counts_as_that_part() -> None:
    values = [[3.0, 4.0], [3.0, 4.0]]
    merged = combined("direction-mean", gathered(values, whole=8))
    assert torch.allclose(merged, torch.tensor([0.75, 1.0]))


def test_an_update_of_zeros_only_shortens() -> None:
    merged = combined("direction-mean", gathered([[3.0, 4.0], [0.0, 0.0]]))
    assert torch.allclose(merged, torch.tensor([1.5, 2.0]))


def test_updates_that_cancel_are_not_blown_up() -> None:
    assert combined("direction-mean", gathered([[2.0, 0.0], [-2.0, 0.0]])).tolist() == [0.0, 0.0]
    nearly = combined("direction-mean", gathered([[2.0, 0.0], [-2.0, 0.001]]))
    assert _length(nearly) < 0.002


def test_one_update_is_itself() -> None:
    assert torch.allclose(combined("direction-mean", gathered([[0.3, -0.7]])), torch.tensor([0.3, -0.7]))


def test_lengths_that_float32_cannot_hold() -> None:
    for rows in ([[1e-44, 0.0], [0.0, 3e38]], [[3e38] * 8, [3e38] * 8], [[1e-45], [1e-45]]):
        assert torch.isfinite(combined("direction-mean", gathered(rows))).all()


def test_a_length_beyond_float32_cannot_turn_the_others_into_nan() -> None:
    huge = torch.full((40_000,), 3.4e38)
    left, right = torch.zeros(40_000), torch.zeros(40_000)
    left[0], right[0] = 3e38, -3e38
    assert torch.isfinite(combined("direction-mean", gathered([huge, left, right]))).all()
