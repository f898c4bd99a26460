import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.assignment import sample_indices

SEEDS = st.integers(min_value=0, max_value=2**64)
ITEMS = st.integers(min_value=1, max_value=3000)


@given(SEEDS, ITEMS, st.integers(min_value=0, max_value=2**40))
def test_every_epoch_is_a_permutation(seed: int, items: int, epoch: int) -> None:
    chosen = sample_indices(seed, epoch * items, items, items)
    assert np.array_equal(np.sort(chosen), np.arange(items))


@given(SEEDS, ITEMS, st.data())
def test_disjoint_counters_within_an_epoch_give_disjoint_samples(
    seed: int, items: int, data: st.DataObject
) -> None:
    border = data.draw(st.integers(min_value=0, max_value=items))
    first = sample_indices(seed, 0, border, items)
    second = sample_indices(seed, border, items - border, items)
    assert not set(first.tolist()) & set(second.tolist())


@given(
    SEEDS,
    ITEMS,
    st.integers(min_value=0, max_value=10**9),
    st.integers(min_value=0, max_value=500),
    st.data(),
)
def test_a_range_is_the_join_of_its_parts(
    seed: int, items: int, start: int, count: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(min_value=0, max_value=count))
    whole = sample_indices(seed, start, count, items)
    parts = [sample_indices(seed, start, cut, items), sample_indices(seed, start + cut, count - cut, items)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_order_differs_between_seeds_and_epochs_and_is_not_the_identity() -> None:
    orders = [sample_indices(seed, start, 1000, 1000) for seed in (0, 1) for start in (0, 1000)]
    orders.append(np.arange(1000))
    assert len({order.tobytes() for order in orders}) == len(orders)


def test_an_epoch_looks_shuffled() -> None:
    """A quarter of an epoch holds about a quarter of every region, and neighbours are not kept together."""
    items = 4096
    chosen = sample_indices(3, 0, items, items)
    regions = np.bincount(chosen[: items // 4] // 256, minlength=16)
    assert regions.min() > 32 and regions.max() < 96
    assert abs(np.corrcoef(chosen[:-1], chosen[1:])[0, 1]) < 0.06


def test_huge_sets_need_no_table() -> None:
    items = 2**60 + 12345
    chosen = sample_indices(1, items - 5, 10, items)
    assert chosen.min() >= 0 and chosen.max() < items


def test_golden_values() -> None:
    """The order is part of a run's identity: a change here makes old runs unreplayable."""
    assert sample_indices(7, 95, 10, 100).tolist() == GOLDEN


GOLDEN = [76, 84, 45, 62, 25, 99, 32, 76, 44, 83]


def test_same_in_another_process() -> None:
    code = "from shoal.data.assignment import sample_indices as s; print(s(7, 95, 10, 100).tolist())"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "77"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(GOLDEN)


@pytest.mark.parametrize(("start", "count", "items"), [(0, 1, 0), (-1, 1, 10), (0, -1, 10)])
def test_refuses_nonsense(start: int, count: int, items: int) -> None:
    with pytest.raises(ValueError, match="no samples"):
        sample_indices(0, start, count, items)
