"""Growth is told from restarts."""

from __future__ import annotations

import pytest

from shoal.apps.bench.slopes import Sample, growth_per_hour, growth_per_round
from shoal.apps.bench.soak import FLAT_KB_PER_ROUND, is_flat


def test_a_leak_is_found_across_restarts() -> None:
    lives = [Sample(life, 100 * life + at, 50 + 2 * at) for life in range(5) for at in range(60)]
    assert growth_per_hour(lives) == pytest.approx(7200)


def test_warming_up_after_every_start_is_no_growth() -> None:
    lives = [Sample(life, 200 * life + at, min(at, 30)) for life in range(5) for at in range(120)]
    assert growth_per_hour(lives, settle_s=30) == pytest.approx(0)
    assert growth_per_hour(lives) > 100


def test_too_little_says_nothing() -> None:
    assert growth_per_hour([]) == 0 == growth_per_hour([Sample(0, 1.0, 5.0)])


def test_a_leak_by_rounds_is_found_once_a_life_has_settled() -> None:
    filling = [Sample(0, 2.0 * n, 1e8 + 20_000 * min(n, 200) + 6_000 * n, n) for n in range(500)]
    assert growth_per_round(filling, 200, 100) == pytest.approx(6_000)
    assert (
        growth_per_round([Sample(0, 2.0 * n, 1e8 + 20_000 * min(n, 200), n) for n in range(500)], 200, 100)
        == 0
    )


def test_lives_that_end_too_early_say_nothing_of_rounds() -> None:
    lives = [Sample(life, 0.0, 9e9, 250 * life + n) for life in range(5) for n in range(250)]
    assert growth_per_round(lives, 200, 100) is None and growth_per_round([], 0, 1) is None


def test_one_that_grows_is_enough_and_one_that_is_unknown_is_too_few() -> None:
    assert is_flat([FLAT_KB_PER_ROUND, -3.0]) is True
    assert is_flat([FLAT_KB_PER_ROUND + 0.1, None]) is False
    assert is_flat([0.0, None]) is None
