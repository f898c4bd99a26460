"""Predictors, and the choice among them, on series of known shape."""

from __future__ import annotations

import math
import random

from shoal.measure.forecast import Forecast, compared, high


def noisy(level: float, count: int = 200) -> list[float]:
    rng = random.Random(1)
    return [level * (0.7 + 0.6 * rng.random()) for _ in range(count)]


def ramp(count: int = 200) -> list[float]:
    return [10.0 + 0.5 * place for place in range(count)]


def test_on_noise_a_mean_wins_and_is_used() -> None:
    errors = compared(noisy(100.0))
    assert errors["smooth"] < 0.9 * errors["last"]
    assert errors["chosen"] < 0.95 * errors["last"]


def test_on_a_ramp_the_trend_wins_and_is_used() -> None:
    errors = compared(ramp())
    assert errors["trend"] < 0.7 * errors["last"] < errors["smooth"]
    assert errors["chosen"] < 0.8 * errors["last"]


def test_where_nobody_foresees_anything_the_last_value_is_used() -> None:
    rng = random.Random(3)
    walk = [100.0]
    for _ in range(300):
        walk.append(max(1.0, walk[-1] + rng.choice((-1.0, 1.0))))
    errors = compared(walk)
    assert errors["chosen"] <= 1.05 * errors["last"]


def test_after_a_drop_to_a_tenth_the_forecast_follows_within_a_few_values() -> None:
    forecast = Forecast()
    for value in [*noisy(100.0, 50), *[10.0] * 6]:
        forecast.take(value)
    assert forecast.next() < 25.0


def test_nothing_known_is_said_to_be_so() -> None:
    forecast = Forecast()
    assert not forecast.known
    assert forecast.next(otherwise=7.0) == 7.0
    assert forecast.chosen == "last"


def test_a_high_quantile_ignores_the_worst_and_falls_when_all_are_low() -> None:
    peak = high()
    for value in (9.0, 1.0, 10.0, 0.5, 8.0):
        peak.take(value)
    assert peak.next() >= 8.0
    for _ in range(5):
        peak.take(1.0)
    assert math.isclose(peak.next(), 1.0)
