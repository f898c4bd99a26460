"""How many toy seeds one CPU second simulates."""

from __future__ import annotations

from typing import Any

from shoal.apps.progress import tracked
from shoal.worlds.simulated.chaos import run_seed
from shoal.worlds.simulated.scenario import TORCH_EVERY


def measure(seeds: int, first: int) -> dict[str, Any]:
    """Seeds with the toy trainer only: those that train a torch model measure torch."""
    toys = [seed for seed in range(first, first + seeds * 2) if seed % TORCH_EVERY][:seeds]
    run_seed(toys[0])  # Imports and caches warm up.
    outcomes = []
    for seed in tracked(toys, "seeds"):
        outcomes.append(run_seed(seed))
    cpu_s = sum(outcome.cpu_s for outcome in outcomes)
    return {
        "seeds": seeds,
        "seeds_per_cpu_s": round(seeds / cpu_s, 2),
        "events_per_seed": round(sum(outcome.events for outcome in outcomes) / seeds),
        "rounds_per_seed": round(sum(outcome.rounds for outcome in outcomes) / seeds, 2),
        "cpu_s": round(cpu_s, 2),
    }
