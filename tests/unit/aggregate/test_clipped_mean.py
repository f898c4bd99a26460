import pytest
import torch

from shoal.aggregate import AGGREGATORS
from shoal.aggregate.clipped_mean import median

from .gatherings import combined, gathered


def test_a_long_update_counts_as_one_of_the_bound() -> None:
    values = [[3.0, 4.0], [0.0, 5.0], [300.0, 400.0]]
    assert torch.allclose(combined("clipped-mean", gathered(values)), torch.tensor([9.0, 17.0]) / 3)
    close = combined("clipped-mean", gathered(values), multiple=1.0)
    assert torch.allclose(close, torch.tensor([6.0, 13.0]) / 3)


def test_where_none_is_long_it_is_the_mean_bit_for_bit() -> None:
    values = [[0.1, 0.7], [0.3, -0.2], [0.9, 0.4]]
    gathering = gathered(values, [3, 4, 5], whole=20)
    assert torch.equal(combined("clipped-mean", gathering), combined("mean", gathering))


def test_the_bound_is_by_the_length_of_the_whole_fragment() -> None:
    long, short = torch.ones(70_000), torch.ones(70_000) * 0.25
    clipped = combined("clipped-mean", gathered([long, short, short]), multiple=1.0)
    assert torch.allclose(clipped, torch.full_like(clipped, 0.25)) and len(set(clipped.tolist())) == 1


@pytest.mark.parametrize(
    ("lengths", "weights", "expected"),
    [
        ([3.0], [1], 3.0),
        ([3.0, 1.0], [1, 1], 1.0),
        ([3.0, 1.0, 2.0], [1, 1, 1], 2.0),
        ([3.0, 1.0, 2.0], [5, 1, 1], 3.0),
        ([3.0, 1.0, 2.0], [1, 10**30, 1], 1.0),
        ([0.0, 0.0, 0.0, 4.0], [9, 9, 9, 1], 4.0),
        ([0.0, 0.0], [1, 1], 0.0),
    ],
)
def test_the_median_is_by_weight_among_those_that_change_something(
    lengths: list[float], weights: list[int], expected: float
) -> None:
    assert median(lengths, weights) == expected


def test_nothing_at_all_is_nothing() -> None:
    assert combined("clipped-mean", gathered([[0.0, 0.0], [0.0, 0.0]])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("multiple", [0.0, -1.0, 1e9])
def test_a_senseless_multiple_is_refused(multiple: float) -> None:
    with pytest.raises(ValueError, match="multiple"):
        AGGREGATORS["clipped-mean"](multiple=multiple)
