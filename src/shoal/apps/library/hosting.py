"""Found a run of one's own model, and coordinate it from this program.

    with shoal.coordinate(model, items=len(data), batch_size=32, recipe={"budget": {"rounds": 20}}) as run:
        print(run.ticket)
        run.wait()

In flow a model and a recipe without its model, data and inner sections; out flow a ticket and a finished run.
Invariant: the run's log, snapshots and keys lie in the home folder, so `shoal log` and `shoal serve` know it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import yaml
from torch import nn

from shoal.apps.home import find_home
from shoal.apps.library.background import Background
from shoal.apps.library.loop import check_parameters
from shoal.apps.unfounded import clear_unfounded
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.coordinator.founding import Founded, found_with
from shoal.coordinator.service import CoordinatorService
from shoal.data.manifest import Manifest
from shoal.replica.state import State, initial_state
from shoal.strategy.mistakes import NEXT_STEP, check_plain, shown
from shoal.strategy.recipe import Recipe, parse_recipe
from shoal.training.flat import layout_of
from shoal.wire.ticket import Ticket, show_ticket
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.keys import load_or_create_identity
from shoal.worlds.real.locks import at_work, coordinating
from shoal.worlds.real.sqlstore import SqlLogStore

END_S = 30.0


def coordinate(
    model: nn.Module,
    *,
    items: int,
    batch_size: int,
    recipe: Mapping[str, Any],
    home: Path | None = None,
    port: int = 0,
    bind: str = "127.0.0.1",
    advertise: str | None = None,
) -> Coordinating:
    """A coordinator in the background, with a new run that begins with this model's parameters.

    `items` is how many samples the participants' data has, `recipe` everything else of the run (budget, strategy,
    membership, see docs/recipes.md). Use the result in a `with` statement. Raises SH-RECIPE-02 or -03, or SH-MODEL-01;
    entering it, SH-SERVE-03 beside another coordinator of the same home.
    """
    check_parameters(model)
    if not isinstance(recipe, Mapping):
        raise ShoalError(
            "SH-RECIPE-02", f"recipe: found {shown(recipe)}; allowed: a dict of sections", NEXT_STEP
        )
    own = {
        "model": {"kind": "own", "description": type(model).__name__},
        "inner": {"kind": "own", "batch_size": batch_size},
        "data": {"source": "own", "items": items},
    }
    if given := sorted(own.keys() & recipe.keys()):
        raise ShoalError(
            "SH-RECIPE-02",
            f"recipe.{given[0]}: found {shown(recipe[given[0]])}; allowed: nothing, the loop brings its own",
            NEXT_STEP,
        )
    values = _plain({**recipe, **own})
    check_plain(values, "recipe")
    checked = parse_recipe(yaml.safe_dump(values), where="recipe")
    return Coordinating(checked, model, find_home(home).root, port, bind, advertise)


def _plain(value: Any) -> Any:
    """The same with Python's own numbers, lists and dicts: NumPy's numbers are as good."""
    match value:
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case bool():
            return value
        case Integral():
            return int(value)
        case Real():
            return float(value)
    return value


def state_of(recipe: Recipe, model: nn.Module) -> State:
    """The state a run begins with: this model's parameters as they are now."""
    layout = layout_of(model, recipe.strategy.schedule.fragments)
    params = [parameter.detach().reshape(-1).float().cpu() for _, parameter in model.named_parameters()]
    return initial_state(layout, torch.cat(params), recipe.strategy.fold_rules().slots)


class Coordinating:
    def __init__(
        self, recipe: Recipe, model: nn.Module, home: Path, port: int, bind: str, advertise: str | None
    ) -> None:
        self.ticket = ""
        self.run = RunId("")
        self._recipe = recipe
        self._state = state_of(recipe, model)
        self._home = find_home(home)
        self._port, self._bind, self._advertise = port, bind, advertise
        self._up = threading.Event()
        self._finished = threading.Event()
        self._background: Background[None] | None = None

    def __enter__(self) -> Coordinating:
        if self._background is not None:
            raise ShoalError(
                "SH-RUN-01",
                "this run has been coordinated before",
                "call shoal.coordinate again for another run",
            )
        self._background = Background("shoal coordinator", self._serve, self._release)
        self._up.wait()
        if self._background.over:
            self._background.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._background is not None:
            self._background.cancel()
            self._background.wait(END_S)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is over and its final state saved; False if that took longer than `timeout_s`."""
        if self._background is None:
            raise ShoalError(
                "SH-RUN-01",
                "nobody coordinates the run",
                "write `with shoal.coordinate(...) as run:` around it",
            )
        over = self._finished.wait(timeout_s)
        if self._background.over:
            self._background.result()
        return over

    def _release(self) -> None:
        self._up.set()
        self._finished.set()

    async def _serve(self) -> None:
        folder = self._home.coordinator
        identity = load_or_create_identity(self._home.coordinator_key)
        host = RealHost(
            identity,
            FileDisk(folder),
            bind=self._bind,
            control_port=self._port,
            peer_port=0,
            advertise=self._advertise,
        )
        clear_unfounded(self._home, self._home.store_url)
        with coordinating(folder), contextlib.closing(SqlLogStore(self._home.store_url)) as store:
            async with host:
                service = CoordinatorService(host, identity, store)
                founded = await host.work(lambda: self._found(service))
                with contextlib.suppress(asyncio.CancelledError):
                    await self._accompany(service, founded)

    def _found(self, service: CoordinatorService) -> Founded:
        with at_work(self._home.coordinator):  # For as long as it takes, also if the program leaves before.
            return found_with(service, self._recipe, first=self._first)

    def _first(self, recipe: Recipe, manifest: Manifest) -> State:
        return self._state

    async def _accompany(self, service: CoordinatorService, founded: Founded) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.serve(), name="coordinator")
            await service.ready.wait()
            ticket = Ticket(service.identity.node, (service.address,), founded.run, founded.token)
            self.ticket, self.run = show_ticket(ticket), founded.run
            self._up.set()
            while not service.runs[founded.run].machine.finished:
                service.changed.clear()
                await service.changed.wait()
                if founded.run in service.broken:
                    raise service.broken[founded.run]
            self._finished.set()
