"""Secret randomness: the right distributions, and nothing that repeats."""

import itertools
import math

import numpy as np
import pytest

from shoal.privacy.source import SecretSource


def counted() -> SecretSource:
    """Keys 0, 1, 2, ..., so that tests always see the same."""
    numbers = itertools.count()
    return SecretSource(lambda size: next(numbers).to_bytes(size, "little"))


def test_normal_numbers_have_the_moments_and_tails_of_a_normal() -> None:
    drawn = counted().normal(200_001).double().numpy()
    assert len(drawn) == 200_001
    assert abs(drawn.mean()) < 0.01 and abs(drawn.std() - 1) < 0.01
    assert abs((drawn**4).mean() - 3) < 0.1
    assert abs((np.abs(drawn) > 1.959964).mean() - 0.05) < 0.003
    assert np.abs(drawn).max() > 4


def test_two_draws_and_two_parts_of_one_have_nothing_in_common() -> None:
    source = counted()
    one, two = source.normal(10_000).numpy(), source.normal(10_000).numpy()
    for left, right in ((one, two), (one[:5000], one[5000:])):
        assert abs(float(np.corrcoef(left, right)[0, 1])) < 0.05


def test_the_same_secret_gives_the_same_and_another_does_not() -> None:
    assert counted().normal(100).equal(counted().normal(100))
    other = SecretSource(lambda size: b"x" * size)
    assert not counted().normal(100).equal(other.normal(100))


def test_uniform_numbers_are_above_zero_and_one_at_most() -> None:
    drawn = counted().uniform(100_000)
    assert 0 < drawn.min() < 1e-3 and 0.999 < drawn.max() <= 1
    assert abs(drawn.mean() - 0.5) < 0.005


@pytest.mark.parametrize("rate", [0.01, 0.25, 0.9])
def test_each_sample_is_chosen_with_its_chance_whatever_the_others_are(rate: float) -> None:
    source, items, draws = counted(), 200, 3000
    hits, sizes, pairs = np.zeros(items), [], 0
    for _ in range(draws):
        chosen = source.chosen(items, rate)
        assert np.array_equal(chosen, np.unique(chosen)) and (len(chosen) == 0 or chosen[-1] < items)
        hits[chosen] += 1
        sizes.append(len(chosen))
        pairs += 0 in chosen and 1 in chosen
    spread = math.sqrt(rate * (1 - rate) / draws)
    assert np.abs(hits / draws - rate).max() < 5 * spread
    assert np.var(sizes) == pytest.approx(items * rate * (1 - rate), rel=0.15)
    assert abs(pairs / draws - rate**2) < 5 * math.sqrt(rate**2 / draws)


def test_all_are_chosen_at_a_chance_of_one() -> None:
    assert counted().chosen(5, 1.0).tolist() == [0, 1, 2, 3, 4]
