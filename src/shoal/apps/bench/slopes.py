"""Does it grow? How much a figure rises in an hour, from samples taken while processes come and go.

In flow samples, each of one life of a process; out flows a slope. Invariant: every life has a level of its own, so that
a restart is neither growth nor its cure; what a life does before it has settled does not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

MEGABYTE = 1e6
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Sample:
    life: int
    at_s: float
    value: float


def growth_per_hour(samples: Iterable[Sample], settle_s: float = 0.0) -> float:
    """The least-squares slope that all lives share; 0 where there is too little to say."""
    lives: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        lives[sample.life].append(sample)
    above = below = 0.0
    for life in lives.values():
        began = min(sample.at_s for sample in life)
        settled = [sample for sample in life if sample.at_s - began >= settle_s]
        if len(settled) < 2:
            continue
        mean_at = sum(sample.at_s for sample in settled) / len(settled)
        mean = sum(sample.value for sample in settled) / len(settled)
        above += sum((sample.at_s - mean_at) * (sample.value - mean) for sample in settled)
        below += sum((sample.at_s - mean_at) ** 2 for sample in settled)
    return above / below * HOUR_S if below else 0.0
