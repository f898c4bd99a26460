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

Engine = Callable[[Setup, Say], Outcome]

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
    strategy = setup.recipe.strategy
    regional = strategy.region is not None
    if name == "lockstep" and (regional or strategy.merge_rule().global_every > 1):
        why = "its workers are in regions" if regional else "its workers meet in pairs"
        raise ShoalError(
            "SH-RECIPE-03", f"{setup.preset} cannot run in lockstep: {why}", "use --engine simulated"
        )
    module, _, attribute = (REGIONAL if regional else ENGINES[name]).partition(":")
    engine: Engine = getattr(importlib.import_module(module), attribute)
    return engine
