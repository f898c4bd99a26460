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

ENGINES = {
    # Coordinator and nodes as they are, in the simulated world.
    "simulated": "shoal.apps.bench.converge.simulated:train",
    # Learners and the fold as they are, workers stacked on one device, nobody ever late: for GPUs.
    "lockstep": "shoal.apps.bench.converge.lockstep:train",
}


def find_engine(name: str) -> Engine:
    """The engine of this name. Raises SH-RECIPE-02."""
    if name not in ENGINES:
        raise ShoalError("SH-RECIPE-02", f"--engine: found {name!r}", f"allowed: {', '.join(ENGINES)}")
    module, _, attribute = ENGINES[name].partition(":")
    engine: Engine = getattr(importlib.import_module(module), attribute)
    return engine
