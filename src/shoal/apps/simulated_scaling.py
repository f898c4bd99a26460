"""How throughput grows with the fleet, in virtual time: useful samples a second, against as many lone devices.

In flow a fleet and sizes; out flows a row for each. Invariant: only samples in sealed updates count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.apps.scaling import Scaled
from shoal.apps.simulated_day import MOST_FLAT, PlayedDay, play_day
from shoal.apps.simulated_fleet import STEP_S, Played, play, toy_recipe
from shoal.apps.simulated_hours import day_recipe
from shoal.lab.fleet import Fleet
from shoal.lab.library import with_hosts

ROUND_STEPS = 100
"""A round takes about as long as so many steps of the slowest device."""
ROUNDS = 6
PARAMS = 300
DAY_STEP_S = 30.0
DAY_S = 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSize(Scaled):
    regions: int
    """0 for one run of all."""
    cpu_s: float


def compare(fleet: Fleet, sizes: Sequence[int], seed: int) -> tuple[SimulatedSize, ...]:
    """Play every size. Raises what a node raises."""
    rows: list[SimulatedSize] = []
    for size in sizes:
        played = _play(with_hosts(fleet, size), size, seed)
        first = rows[0].throughput_share if rows else played.throughput_share
        rows.append(
            SimulatedSize(
                nodes=size,
                regions=played.regions if isinstance(played, PlayedDay) else 0,
                useful_samples_per_s=played.useful_samples_per_s,
                possible_samples_per_s=played.possible_samples_per_s,
                throughput_share=played.throughput_share,
                linear=round(played.throughput_share / first, 4),
                cpu_s=played.cpu_s,
            )
        )
    return tuple(rows)


def _play(fleet: Fleet, size: int, seed: int) -> Played | PlayedDay:
    if size > MOST_FLAT:
        recipe = day_recipe(())
        return play_day(fleet, recipe, most_s=DAY_S, seed=seed, diurnal=False, step_s=DAY_STEP_S)
    slowest = min(host.speed for host in fleet.hosts)
    window_s = ROUND_STEPS * (fleet.step or STEP_S) / slowest
    settings = [
        f"strategy.schedule.seconds={window_s}",
        "strategy.schedule.steps=100000",
        f"strategy.seal.deadline_s={2 * window_s}",
        f"membership.min_nodes={size}",
    ]
    recipe = toy_recipe("local-sgd", ROUNDS, settings)
    return play(fleet, recipe, params=PARAMS, most_s=20 * ROUNDS * window_s, seed=seed)
