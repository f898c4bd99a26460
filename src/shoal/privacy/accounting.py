"""What releases cost: (epsilon, delta) of repeated Gaussian mechanisms, by `dp-accounting`'s Rényi accountant.

In flow noise, sampling rate and a number of releases; out flow epsilons, and the other way round. Invariant: what is
promised is never less than what the accountant says: noise is rounded up, and releases are rounded down.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shoal.base.errors import ShoalError

ORDERS = (*(1 + step / 4 for step in range(1, 37)), *range(11, 64), 64, 80, 96, 128, 192, 256, 512)
"""Of the Rényi divergences that are compared; the best of them counts."""
MOST_NOISE = 1e4
MOST_RELEASES = 1 << 30


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One release: Gaussian noise of so many sensitivities, on a sample drawn with this chance for each."""

    noise: float
    rate: float = 1.0


def epsilon_of(mechanism: Mechanism, releases: int, delta: float) -> float:
    """What so many releases of one mechanism cost together. Raises SH-PRIVACY-02 without the package."""
    if releases <= 0:
        return 0.0
    orders, divergences = _one_release(mechanism)
    rdp = _package().rdp
    # Divergences of independent releases add up.
    return float(rdp.compute_epsilon(orders, [releases * value for value in divergences], delta)[0])


@lru_cache(maxsize=256)
def _one_release(mechanism: Mechanism) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The Rényi divergences of one release, at those orders at which they could be computed."""
    package = _package()
    event = package.GaussianDpEvent(mechanism.noise)
    if mechanism.rate < 1:
        event = package.PoissonSampledDpEvent(mechanism.rate, event)
    with _quiet():
        found = package.rdp.RdpAccountant(ORDERS).compose(event).rdp
    sound = [(a, float(value)) for a, value in zip(ORDERS, found, strict=True) if 0 <= value < math.inf]
    return tuple(float(a) for a, _ in sound), tuple(value for _, value in sound)


def _package() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise ShoalError(
            "SH-PRIVACY-02", "dp-accounting is not installed", "pip install 'shoal[privacy]'"
        ) from None
    return dp_accounting


def releases_within(mechanism: Mechanism, epsilon: float, delta: float) -> int:
    """How many releases cost no more than this."""
    low, high = 0, 1
    while high < MOST_RELEASES and epsilon_of(mechanism, high, delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon_of(mechanism, middle, delta) <= epsilon else (low, middle)
    return low


@lru_cache(maxsize=256)
def noise_within(rate: float, releases: int, epsilon: float, delta: float) -> float:
    """The least noise, up to a thousandth of it, with which so many releases cost no more than this. Raises
    SH-PRIVACY-01 if there is none."""

    def costs(noise: float) -> float:
        return epsilon_of(Mechanism(noise, rate), releases, delta)

    low, high = 0.1, 0.1
    while costs(high) > epsilon:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise ShoalError(
                "SH-PRIVACY-01",
                f"no noise below {MOST_NOISE:g} times the clip makes {releases} releases cost epsilon {epsilon:g} "
                f"(delta {delta:g})",
                "raise privacy.epsilon, or lower budget.rounds",
            )
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if costs(middle) <= epsilon else (middle, high)
    return high


@contextmanager
def _quiet() -> Iterator[None]:
    """Orders that do not converge are left out of the comparison, which needs no telling."""
    log = logging.getLogger("absl")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
