"""Growth is told from restarts."""

from __future__ import annotations

import pytest

from shoal.apps.bench.slopes import Sample, growth_per_hour


def test_a_leak_is_found_across_restarts() -> None:
    lives = [Sample(life, 100 * life + at, 50 + 2 * at) for life in range(5) for at in range(60)]
    assert growth_per_hour(lives) == pytest.approx(7200)


def test_warming_up_after_every_start_is_no_growth() -> None:
    lives = [Sample(life, 200 * life + at, min(at, 30)) for life in range(5) for at in range(120)]
    assert growth_per_hour(lives, settle_s=30) == pytest.approx(0)
    assert growth_per_hour(lives) > 100


def test_too_little_says_nothing() -> None:
    assert growth_per_hour([]) == 0 == growth_per_hour([Sample(0, 1.0, 5.0)])
