"""What a measured value will be next: several predictors on one series, of which the best so far is believed.

In flow values in the order in which they were measured; out flows the next one, as expected. Invariant: a predictor is
believed only while it has been clearly better than taking the last value again, on this very series; so on a series
that nobody can foresee the forecast is the last value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

NEWS = 0.3
"""How much of a moving mean the latest value makes up."""
ERROR_NEWS = 0.1
CLEARLY = 0.95
"""A predictor wins with less than this share of the last value's error."""
ENOUGH = 8
"""Values after which predictors are compared."""


class Predictor(Protocol):
    def next(self) -> float:
        """What comes next. Called once there was a value."""

    def take(self, value: float) -> None: ...


class LastValue:
    """It stays as it is."""

    def __init__(self) -> None:
        self._value = 0.0

    def next(self) -> float:
        return self._value

    def take(self, value: float) -> None:
        self._value = value


class Smooth:
    """A moving mean: for values that jump about a level."""

    def __init__(self, news: float = NEWS) -> None:
        self._news = news
        self._mean: float | None = None

    def next(self) -> float:
        return self._mean or 0.0

    def take(self, value: float) -> None:
        self._mean = value if self._mean is None else self._mean + self._news * (value - self._mean)


class LevelTrend:
    """Level and trend, both smoothed (Holt's): for values that rise or fall for a while."""

    def __init__(self, level_news: float = 0.5, trend_news: float = 0.3, damping: float = 0.9) -> None:
        self._level_news, self._trend_news, self._damping = level_news, trend_news, damping
        self._level: float | None = None
        self._trend = 0.0

    def next(self) -> float:
        return (self._level or 0.0) + self._damping * self._trend

    def take(self, value: float) -> None:
        if self._level is None:
            self._level = value
            return
        expected = self._level + self._damping * self._trend
        level = expected + self._level_news * (value - expected)
        step = level - self._level
        self._trend = self._damping * self._trend + self._trend_news * (step - self._damping * self._trend)
        self._level = level


class Median:
    """The middle of the last few: for values with outliers."""

    def __init__(self, window: int = 7) -> None:
        self._last: deque[float] = deque(maxlen=window)

    def next(self) -> float:
        return quantile(self._last, 0.5)

    def take(self, value: float) -> None:
        self._last.append(value)


class Quantile:
    """What the better ones of the last few were like: for rates and round trips, which other causes only make worse."""

    def __init__(self, share: float, window: int = 5) -> None:
        self._last: deque[float] = deque(maxlen=window)
        self._share = share
        self._next: float | None = 0.0

    @property
    def known(self) -> bool:
        return bool(self._last)

    def next(self) -> float:
        if self._next is None:  # It is asked for before every request, and changes with some.
            self._next = quantile(self._last, self._share)
        return self._next

    def take(self, value: float) -> None:
        self._last.append(value)
        self._next = None


def high() -> Quantile:
    """For rates."""
    return Quantile(0.75)


def low() -> Quantile:
    """For round trips: one in which a connection was opened took several."""
    return Quantile(0.25)


PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "last": LastValue,
    "smooth": Smooth,
    "trend": LevelTrend,
    "median": Median,
}
"""By name; `last` is what the others are measured against."""


class Forecast:
    """One series: its moving mean, and what is expected next by whoever foresaw it best."""

    def __init__(self) -> None:
        self.count = 0
        self._predictors = {name: make() for name, make in PREDICTORS.items()}
        self._errors = dict.fromkeys(PREDICTORS, 0.0)

    def take(self, value: float) -> None:
        """The next value; no less than 0, as everything that is measured here."""
        if self.count:
            for name, predictor in self._predictors.items():
                error = abs(predictor.next() - value)
                self._errors[name] += ERROR_NEWS * (error - self._errors[name])
        for predictor in self._predictors.values():
            predictor.take(value)
        self.count += 1

    @property
    def known(self) -> bool:
        return self.count > 0

    @property
    def mean(self) -> float:
        """The moving mean; 0 while unknown."""
        return self._predictors["smooth"].next()

    @property
    def chosen(self) -> str:
        """Whose forecast is believed."""
        if self.count < ENOUGH:
            return "last"
        best = min(self._errors, key=lambda name: (self._errors[name], name != "last"))
        return best if self._errors[best] < CLEARLY * self._errors["last"] else "last"

    def next(self, otherwise: float = 0.0) -> float:
        """What is expected next; `otherwise` while nothing is known."""
        return max(0.0, self._predictors[self.chosen].next()) if self.count else otherwise


def quantile(values: Sequence[float] | deque[float], share: float) -> float:
    """The value below which this share lies; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def compared(series: Sequence[float]) -> dict[str, float]:
    """The mean absolute error of every predictor on a series, and of the forecast that chooses among them."""
    names = [*PREDICTORS, "chosen"]
    predictors: dict[str, Predictor | Forecast] = {name: make() for name, make in PREDICTORS.items()}
    predictors["chosen"] = Forecast()
    errors = dict.fromkeys(names, 0.0)
    for place, value in enumerate(series):
        for name in names:
            errors[name] += abs(predictors[name].next() - value) if place else 0.0
            predictors[name].take(value)
    return {name: error / max(1, len(series) - 1) for name, error in errors.items()}
