"""Two levels of log in the simulated world, in which nothing goes wrong: a parent run, its hubs and their regions.

In flow a recipe with regions and a trainer for each machine; out flow the parent's log and its final state, the
regions' logs, and what travelled. Invariant: as in `calm`, services, logs and folds are the product's own. A hub is two
hosts: one in the parent run, by its far link, and one that coordinates the region.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from shoal.apps.bench.calm import (
    COORDINATOR,
    FAST,
    NO_END,
    STALLED_S,
    CountedNetwork,
    Fleet,
    Moved,
    Observer,
    WatchedLog,
    found,
    how_far,
    innermost,
)
from shoal.apps.progress import Bar
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.coordinator.service import CoordinatorService
from shoal.data.manifest import Manifest
from shoal.hub.region import Region
from shoal.hub.service import HubService
from shoal.node.options import NodeOptions
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.replica.state import State
from shoal.runlog.entries import Entry, Seal
from shoal.runlog.files import FileLogStore
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe
from shoal.training.trainer import Trainer
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.founding import TOKEN, identity_of
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop, hush
from shoal.worlds.simulated.network import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Country:
    """Regions of equal machines, each with a hub."""

    recipe: Recipe
    manifest: Manifest
    make_trainer: Callable[[], Trainer]
    regions: tuple[int, ...]
    """How many machines each has."""
    step_s: float = 0.1
    far: Link = field(default_factory=lambda: FAST)
    """Every hub's link to the others."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedCountry:
    view: RunView
    regions: tuple[RunView, ...]
    state: State
    moved: Moved
    wire_bytes: int
    virtual_s: float


def play(country: Country, observer: Observer) -> PlayedCountry:
    """Run it to the parent run's end. Raises what a node raises, and SH-RUN-01 if it comes to a standstill."""
    hush()
    loop = SimLoop(country.seed, event_budget=NO_END)
    played = _Country(loop, country, observer)
    try:
        with played.bar:
            return loop.run(played.play())
    except BaseExceptionGroup as group:
        raise innermost(group) from group


def hub_name(region: int) -> str:
    return f"hub{region}"


def seat_name(region: int) -> str:
    return f"seat{region}"


class _Country:
    def __init__(self, loop: SimLoop, country: Country, observer: Observer) -> None:
        self._loop, self._country, self._observer = loop, country, observer
        self._network = CountedNetwork(loop)
        self._run = RunId(f"{country.seed:032x}")
        self._entries = 0
        self.bar = Bar()
        self._hubs: list[HubService] = []
        self._nodes: list[NodeService] = []
        self._tasks: list[asyncio.Task[Any]] = []
        disk = SimDisk()
        found(
            disk,
            self._run,
            Fleet(
                recipe=country.recipe,
                manifest=country.manifest,
                make_trainer=country.make_trainer,
                computers=(),
                seed=country.seed,
            ),
        )
        host = self._host(COORDINATOR, country.far, disk)
        log = WatchedLog(host, self._appended)
        self._parent = CoordinatorService(host, identity_of(country.seed, COORDINATOR), log)
        self._spawn(host, self._parent.serve(), COORDINATOR)

    async def play(self) -> PlayedCountry:
        for number, members in enumerate(self._country.regions):
            self._begin_region(number, members)
        hubs = [task for task in self._tasks if task.get_name().startswith("hub")]
        await self._wait({*hubs})
        view, hub = self._parent.runs[self._run].machine.view, self._hubs[0]
        assert hub.state is not None and hub.machine.at == view.at
        played = PlayedCountry(
            view=view,
            regions=tuple(hub.region.view for hub in self._hubs),
            state=hub.state,
            moved=self._network.moved,
            wire_bytes=self._network.sent_bytes,
            virtual_s=self._loop.time(),
        )
        for task in self._tasks:
            task.cancel()
        return played

    def _begin_region(self, number: int, members: int) -> None:
        seat_host = self._host(seat_name(number), FAST, SimDisk())
        log = FileLogStore(seat_host.disk, seat_host.reached)
        seat = CoordinatorService(seat_host, identity_of(self._country.seed, seat_host.name), log)
        self._spawn(seat_host, seat.serve(), seat_host.name)
        host = self._host(hub_name(number), self._country.far, SimDisk())
        region = Region(seat, f"region {number}", min_nodes=members)
        hub = HubService(
            host,
            identity_of(self._country.seed, host.name),
            self._invitation(self._parent, self._run, TOKEN, host.name),
            lambda *_: self._country.make_trainer(),
            NodeOptions(give_up_s=STALLED_S),
            region,
        )
        self._hubs.append(hub)
        self._spawn(host, hub.run(), host.name)
        for member in range(members):
            here = self._host(f"n{number}.{member}", FAST, SimDisk())
            self._spawn(here, self._member(here, region), here.name)

    async def _member(self, host: SimHost, region: Region) -> str:
        await region.opened.wait()
        invitation = self._invitation(region.service, region.run, await region.new_token(), host.name)
        node = NodeService(
            host,
            identity_of(self._country.seed, host.name),
            invitation,
            lambda *_: self._country.make_trainer(),
            NodeOptions(step_seconds=self._country.step_s, give_up_s=STALLED_S),
        )
        self._nodes.append(node)
        return await node.run()

    def _invitation(self, to: CoordinatorService, run: RunId, token: str, name: str) -> Invitation:
        address = next(key for key, host in self._network.hosts.items() if host.node == to.identity.node)
        return Invitation(coordinator=to.identity.node, addresses=(address,), run=run, token=token, name=name)

    async def _wait(self, hubs: set[asyncio.Task[Any]]) -> None:
        """Until every hub has finished. Whoever fails ends it for all; so does a standstill."""
        seen, running = -1, {*self._tasks}
        while hubs & running:
            done, running = await asyncio.wait(
                running, timeout=STALLED_S, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            if not done and self._entries == seen:
                raise ShoalError(
                    "SH-RUN-01",
                    f"nothing happened for {STALLED_S:g} simulated seconds after {seen} entries",
                    "raise the seals' deadline_s, or lower schedule.steps",
                )
            seen = self._entries

    def _spawn(self, host: SimHost, work: Coroutine[Any, Any, Any], name: str) -> None:
        self._tasks.append(self._loop.spawn(host.owner, work, name))

    def _host(self, name: str, link: Link, disk: SimDisk) -> SimHost:
        node = identity_of(self._country.seed, name).node
        return SimHost(self._loop, self._network, name, 1, disk, node=node, link=link)

    def _appended(self, entry: Entry) -> None:
        self._entries += 1
        if isinstance(entry.body, Seal):
            self.bar.at(*how_far(self._country.recipe, self._parent.runs[self._run].machine.view))
        self._observer.appended(entry)
