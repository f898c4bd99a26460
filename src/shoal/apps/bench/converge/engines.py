"""The ways to train a fleet: `(setup, say) -> Outcome`, by name.

In flow a setup and where progress is told; out flows what came of it. Invariant: an engine's module is imported when
it is used. To add one: a module with such a function, and one line in `ENGINES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from shoal.apps.bench.converge.outcome import Outcome
from shoal.apps.bench.converge.setup import Say, Setup
from shoal.base.errors import ShoalError
from shoal.strategy.elastic import member_batch, rate_factor
from shoal.strategy.recipe import Recipe
from shoal.training.spec import GptSpec

Engine = Callable[[Setup, Say], Outcome]

REGIONS = 2
"""Into how many the workers of a preset of two levels are divided."""
REGIONAL = "shoal.apps.bench.converge.regions:train"
"""Where the simulated world has two levels."""
ENGINES = {
    # Coordinator and nodes as they are, in the simulated world.
    "simulated": "shoal.apps.bench.converge.simulated:train",
    # Learners and the fold as they are, workers stacked on one device, nobody ever late: for GPUs.
    "lockstep": "shoal.apps.bench.converge.lockstep:train",
}


def find_engine(name: str, setup: Setup) -> Engine:
    """The engine of this name that trains this setup. Raises SH-RECIPE-02, or -03 if it has none for it."""
    if name not in ENGINES:
        raise ShoalError("SH-RECIPE-02", f"--engine: found {name!r}", f"allowed: {', '.join(ENGINES)}")
    regional = setup.recipe.strategy.region is not None
    if name == "lockstep" and (why := _not_in_lockstep(setup)):
        raise ShoalError(
            "SH-RECIPE-03", f"{setup.preset} cannot run in lockstep: {why}", "use --engine simulated"
        )
    if regional and setup.workers < REGIONS:
        raise ShoalError(
            "SH-RECIPE-03", f"{setup.workers} workers do not fill {REGIONS} regions", "raise --workers"
        )
    module, _, attribute = (REGIONAL if regional else ENGINES[name]).partition(":")
    engine: Engine = getattr(importlib.import_module(module), attribute)
    return engine


def _not_in_lockstep(setup: Setup) -> str:
    """What of a setup its learners and the fold alone cannot do; "" if they do it all."""
    recipe, strategy = setup.recipe, setup.recipe.strategy
    if strategy.region is not None:
        return "its workers are in regions"
    if strategy.merge_rule().global_every > 1:
        return "its workers meet in pairs"
    if strategy.seal_rule().most_stale or strategy.schedule.seconds is not None:
        return "its rounds do not wait for everybody"
    if strategy.digest is not None and strategy.digest.folders:
        return "its workers fold for one another"
    if recipe.privacy is not None or recipe.masking.on:
        return "its updates are hidden"
    if why := _planned_by_time(recipe):
        return why
    if member_batch(recipe, setup.workers) != setup.inner.batch_size:
        return f"by membership.scaling a fleet of {setup.workers} has another batch than inner.batch_size"
    if rate_factor(recipe, setup.workers) != 1.0:
        return f"by membership.scaling a fleet of {setup.workers} has another outer rate than the recipe's"
    return "" if isinstance(recipe.model, GptSpec) else "stacked workers are GPTs"


def _planned_by_time(recipe: Recipe) -> str:
    """What of the work of equal workers would depend on how long steps and lines take, which lockstep does not have; ""
    if nothing does. A budget of rounds fixes the steps, for `schedule.hide` and for an aware planner."""
    schedule, aware = recipe.strategy.schedule, recipe.strategy.planner.kind == "aware"
    if recipe.budget.rounds is None and (aware or schedule.hide is not None):
        which = "planner.kind aware" if aware else "schedule.hide"
        return f"by {which} and without budget.rounds, measured times say how many steps a round has"
    if aware and schedule.overlap:
        return "by planner.kind aware, measured times say how many steps schedule.overlap is"
    if aware and recipe.strategy.codec.choices:
        return "by planner.kind aware, measured times say which of codec.choices is taken"
    return ""
