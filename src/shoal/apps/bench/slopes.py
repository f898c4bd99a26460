"""Does it grow? How much a figure rises in an hour or with a round, from samples taken while processes come and go.

In flow samples, each of one life of a process; out flows a slope. Invariant: every life has a level of its own, so that
a restart is neither growth nor its cure; what a life does before it has settled does not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

MEGABYTE = 1e6
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Sample:
    life: int
    at_s: float
    value: float
    round: int = 0
    """How many rounds the run had sealed by then."""


def growth_per_hour(samples: Iterable[Sample], settle_s: float = 0.0) -> float:
    """The least-squares slope that all lives share; 0 where there is too little to say."""
    return (_slope(samples, lambda sample: sample.at_s, settle_s, 0.0) or 0.0) * HOUR_S


def growth_per_round(samples: Iterable[Sample], settle_rounds: int, least_rounds: int) -> float | None:
    """The same by rounds; None where no life went on for `least_rounds` after it had settled."""
    return _slope(samples, lambda sample: float(sample.round), settle_rounds, least_rounds)


def _slope(
    samples: Iterable[Sample], place: Callable[[Sample], float], settle: float, least: float
) -> float | None:
    lives: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        lives[sample.life].append((place(sample), sample.value))
    above = below = 0.0
    for life in lives.values():
        began = min(at for at, _ in life)
        settled = [(at, value) for at, value in life if at - began >= settle]
        if len(settled) < 2 or settled[-1][0] - settled[0][0] < least:
            continue
        mean_at = sum(at for at, _ in settled) / len(settled)
        mean = sum(value for _, value in settled) / len(settled)
        above += sum((at - mean_at) * (value - mean) for at, value in settled)
        below += sum((at - mean_at) ** 2 for at, _ in settled)
    return above / below if below else None
