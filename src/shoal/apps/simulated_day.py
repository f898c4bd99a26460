"""A day of a large fleet in virtual time: regions with hubs, people who sleep at night, and a few who really train.

In flow a fleet and a recipe with regions; out flows what the day came to. Invariant: coordinators, hubs, nodes, logs
and transfers are the product's own, every byte travels, and every node folds or shares a fold of the very same inputs;
only local training is modelled, for all but some nodes of each region, which really train.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shoal.apps.bench import calm
from shoal.apps.progress import Bar
from shoal.apps.simulated_fleet import (
    GIVE_UP_S,
    LOOK_S,
    CountedHost,
    FleetNetwork,
    claims_of,
    link_of,
    mean_loss,
    with_coordinator,
)
from shoal.apps.simulated_hours import in_order, regions_of, waking
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.coordinator.service import CoordinatorService
from shoal.data.dataset import open_dataset
from shoal.data.prepare import prepare
from shoal.hub.region import Region
from shoal.hub.service import HubService
from shoal.lab.fleet import Fleet, names_of
from shoal.lab.library import specs_of, with_host
from shoal.lab.links import Between, Line, Power, Step, Tune, fleet_to_links, timeline
from shoal.node.options import NodeOptions
from shoal.node.session import Invitation
from shoal.replica.blobs import chunk_list
from shoal.runlog.entries import Entry, Seal
from shoal.strategy.recipe import Recipe
from shoal.training.spec import SgdSpec
from shoal.training.trainer import TorchTrainer, Trainer
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.founding import TOKEN, identity_of
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.modelled import ModelledTrainer, Paths
from shoal.worlds.simulated.network import Link
from shoal.worlds.simulated.sharing import Folds, SharingNode

DAY_S = 86400.0
MOST_FLAT = 100
"""Up to here a fleet may well be one run; beyond, every node fetching every update is not worth simulating."""
REAL_IN_REGION = 1
"""So many nodes of each region really train."""
DRAWS = 2
"""Paths recorded for each state that modelled nodes begin at."""
STEP_S = 600.0
"""What a step takes a device of speed 1: a large model, or many small steps seen as one."""
JOB_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedDay:
    """What came of it."""

    fleet: str
    nodes: int
    regions: int
    trained_really: int
    """Nodes whose every step was a real one, by torch; the others' training was modelled."""
    paths_recorded: int
    """Real runs of some steps each, which the modelled nodes' updates were drawn from."""
    virtual_s: float
    cpu_s: float
    rounds: int
    """Of the run that the regions' hubs train."""
    region_rounds: int
    accepted: int
    """Updates of nodes that their regions sealed."""
    rejected: int
    samples: int
    useful_samples_per_s: float
    possible_samples_per_s: float
    """If every device had trained whenever it was on."""
    throughput_share: float
    online_mean: float
    online_least: int
    online_most: int
    power_changes: int
    folds_made: int
    folds_shared: int
    loss_first: float
    loss_last: float
    sent_bytes: int
    utilisation: float
    """Of the time in which devices were on: the share in which they trained."""
    params: int
    ended: str


def play_day(
    fleet: Fleet,
    recipe: Recipe,
    *,
    most_s: float = DAY_S,
    seed: int = 0,
    diurnal: bool = True,
    step_s: float = STEP_S,
) -> PlayedDay:
    """Play it until so much virtual time is over. Raises what a node raises."""
    torch.set_num_threads(1)
    loop, began = SimLoop(seed, event_budget=calm.NO_END), time.process_time()
    day = _Day(loop, fleet, recipe, seed, step_s)
    try:
        return loop.run(day.play(most_s, diurnal, lambda: time.process_time() - began))
    except BaseExceptionGroup as group:
        raise calm.innermost(group) from group


@dataclass(slots=True)
class _Device:
    """One node's machine: whether it is on, and what it did."""

    line: Line
    region: int
    host: CountedHost | None = None
    on: bool = True
    awake: bool = True
    on_since: float = 0.0
    on_s: float = 0.0


class _Day:
    def __init__(self, loop: SimLoop, fleet: Fleet, recipe: Recipe, seed: int, step_s: float) -> None:
        self._loop, self._fleet, self._recipe, self._seed, self._step_s = loop, fleet, recipe, seed, step_s
        self._regions = regions_of(fleet_to_links(fleet))
        self._seen = _with_seats(fleet, self._regions)
        self._network = FleetNetwork(loop, fleet_to_links(self._seen))
        self._devices = {
            line.name: _Device(line, number) for number, lines in enumerate(self._regions) for line in lines
        }
        self._busy_s: dict[str, float] = defaultdict(float)
        self._folds = [Folds() for _ in self._regions]
        self._run, self._rounds, self._powered = RunId(f"{seed:032x}"), 0, 0
        self._online: list[int] = []
        self._hubs: list[HubService] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._seals: list[list[Seal]] = [[] for _ in self._regions]
        self._set_up_training()
        self._parent = self._begin_parent()

    def _set_up_training(self) -> None:
        kept: dict[str, bytes] = {}

        def put(data: bytes) -> Any:
            blob = chunk_list(data).blob
            kept[blob] = data
            return blob

        self._manifest = prepare(self._recipe.data, put)
        self._dataset = open_dataset(self._manifest, lambda blob: kept[blob])
        self._paths = Paths(
            self._real(),
            items=self._manifest.train_items,
            batch=self._recipe.inner.batch_size,
            seed=self._seed,
        )

    def _real(self) -> Trainer:
        assert isinstance(self._recipe.inner, SgdSpec)
        fragments = self._recipe.strategy.schedule.fragments
        return TorchTrainer(
            self._recipe.model,
            self._recipe.inner,
            self._manifest,
            self._dataset,
            self._recipe.seed,
            torch.device("cpu"),
            fragments=fragments,
        )

    def _begin_parent(self) -> CoordinatorService:
        disk = SimDisk()
        founded = calm.Fleet(
            recipe=self._recipe,
            manifest=self._manifest,
            make_trainer=self._real,
            computers=(),
            seed=self._seed,
        )
        calm.found(disk, self._run, founded)
        host = self._host(calm.COORDINATOR, disk, calm.FAST, 1.0)
        service = CoordinatorService(
            host, identity_of(self._seed, host.name), calm.WatchedLog(host, self._far_sealed)
        )
        self._spawn(host, service.serve(), host.name)
        return service

    # --- the day -------------------------------------------------------------------------------------------

    async def play(self, most_s: float, diurnal: bool, cpu_s: Callable[[], float]) -> PlayedDay:
        for number in range(len(self._regions)):
            self._begin_region(number)
        zones = {name: 24.0 * device.region / len(self._regions) for name, device in self._devices.items()}
        days = [waking(device.line, zones[name], self._seed) for name, device in self._devices.items()]
        changing = asyncio.create_task(self._change(days if diurnal else []), name="events")
        with Bar() as bar:
            while self._loop.time() < most_s:
                await asyncio.sleep(60 * LOOK_S)
                bar.at(self._loop.time(), most_s, "virtual seconds")
                self._online.append(sum(device.on and device.awake for device in self._devices.values()))
                for task in (*self._tasks, changing):
                    if task.done() and not task.cancelled():
                        task.result()
        changing.cancel()
        return self._played(cpu_s())

    async def _change(self, days: list[Iterator[Step]]) -> None:
        """Everybody's day, and what the fleet's file says will happen; who is awake first is started first."""
        for device in self._devices.values() if days else ():
            device.awake = False
        waking_up = in_order(days)
        steps = in_order([((step, True) for step in waking_up), ((s, False) for s in timeline(self._seen))])
        began = False
        for step, of_day in steps:
            if step.at_s > 0 and not began:
                began = True
                self._start_all()
            await asyncio.sleep(max(0.0, step.at_s - self._loop.time()))
            self._carry_out(step, of_day)
        if not began:
            self._start_all()

    def _start_all(self) -> None:
        for device in self._devices.values():
            if device.on and device.awake:
                self._switch(device, True)

    def _carry_out(self, step: Step, of_day: bool) -> None:
        network, change = self._network, step.change
        match change:
            case Power(hosts, on):
                for device in self._meant(hosts):
                    was = device.on and device.awake
                    device.awake, device.on = (on, device.on) if of_day else (device.awake, on)
                    if step.at_s > 0 and was != (device.on and device.awake):
                        self._switch(device, not was)
            case Between(ways, cut):
                network.faults.cut = network.faults.cut | ways if cut else network.faults.cut - ways
            case Tune(hosts, values):
                devices = self._meant(hosts)
                tuned = Tune(tuple(device.line.name for device in devices), values)
                network.change(network.links.after(tuned))
                for host in (device.host for device in devices):
                    if host is not None:
                        host.link = link_of(network.links, host.name)

    def _meant(self, hosts: tuple[str, ...]) -> list[_Device]:
        """Nodes sleep and have lines that change; coordinators and hubs are on, as in a fleet without regions."""
        return [self._devices[name] for name in hosts if name in self._devices]

    def _switch(self, device: _Device, on: bool) -> None:
        """A machine wakes or falls asleep: nothing of it runs, and its peers are not told."""
        self._powered += 1
        if on:
            device.on_since = self._loop.time()
        else:
            device.on_s += self._loop.time() - device.on_since
        if device.host is None:
            self._join(device)
            return
        device.host.switch(on)

    # --- parts -----------------------------------------------------------------------------------------------

    def _begin_region(self, number: int) -> None:
        """A region's coordinator and its hub."""
        link = link_of(self._network.links, _seat(number))
        host = self._host(_seat(number), SimDisk(), link, 1.0)
        log = calm.WatchedLog(host, lambda entry: self._near_sealed(number, entry))
        seat = CoordinatorService(host, identity_of(self._seed, host.name), log)
        self._spawn(host, seat.serve(), host.name)
        far = self._host(_hub(number), SimDisk(), link, 1.0)
        hub = HubService(
            far,
            identity_of(self._seed, far.name),
            self._invitation(self._parent, calm.COORDINATOR, self._run, TOKEN, far.name),
            lambda *_: self._real(),
            NodeOptions(give_up_s=GIVE_UP_S),
            Region(seat, f"region {number}"),
        )
        self._hubs.append(hub)
        self._spawn(far, hub.run(), far.name)

    def _join(self, device: _Device) -> None:
        line = device.line
        link = link_of(self._network.links, line.name)
        device.host = self._host(line.name, SimDisk(), link, line.speed)
        self._spawn(device.host, self._member(device.host, device.region), line.name)

    async def _member(self, host: SimHost, number: int) -> str:
        region = self._hubs[number].region
        await region.opened.wait()
        token = await region.new_token()
        place = [line.name for line in self._regions[number]].index(host.name)
        node = SharingNode(
            host,
            identity_of(self._seed, host.name),
            self._invitation(region.service, _seat(number), region.run, token, host.name),
            lambda *_: (
                self._real() if place < REAL_IN_REGION else ModelledTrainer(self._paths, place % DRAWS)
            ),
            NodeOptions(step_seconds=self._step_s, job_s=JOB_S, give_up_s=GIVE_UP_S),
        )
        node.folds = self._folds[number]
        return await node.run()

    def _invitation(
        self, to: CoordinatorService, address: str, run: RunId, token: str, name: str
    ) -> Invitation:
        return Invitation(coordinator=to.identity.node, addresses=(address,), run=run, token=token, name=name)

    def _host(self, name: str, disk: SimDisk, link: Link, speed: float) -> CountedHost:
        node = identity_of(self._seed, name).node
        host = CountedHost(self._loop, self._network, name, 1, disk, node=node, link=link, speed=speed)
        host.busy_s = self._busy_s
        return host

    def _spawn(self, host: SimHost, work: Coroutine[Any, Any, Any], name: str) -> None:
        self._tasks.append(self._loop.spawn(host.owner, work, name))

    def _far_sealed(self, entry: Entry) -> None:
        self._rounds += isinstance(entry.body, Seal)

    def _near_sealed(self, number: int, entry: Entry) -> None:
        if isinstance(entry.body, Seal):
            self._seals[number].append(entry.body)

    # --- what came of it -------------------------------------------------------------------------------------

    def _played(self, cpu_s: float) -> PlayedDay:
        sealed = [
            (claims[0].round, claims) for seals in self._seals for claims in map(claims_of, seals) if claims
        ]
        sealed.sort(key=lambda item: item[0])
        if not sealed:
            raise ShoalError("SH-RUN-01", "no round was sealed", "give it more time, or the fleet more hosts")
        virtual_s = self._loop.time()
        for device in self._devices.values():
            if device.host is not None and device.on and device.awake:
                device.on_s += virtual_s - device.on_since
        claims = [claim for _, found in sealed for claim in found]
        samples = sum(claim.samples for claim in claims)
        batch = self._recipe.inner.batch_size
        possible = sum(d.on_s * d.line.speed for d in self._devices.values()) * batch / self._step_s
        on_s = sum(device.on_s for device in self._devices.values())
        busy_s = sum(self._busy_s[name] for name in self._devices)
        return PlayedDay(
            fleet=self._fleet.name,
            nodes=len(self._devices),
            regions=len(self._regions),
            trained_really=sum(min(REAL_IN_REGION, len(lines)) for lines in self._regions),
            paths_recorded=self._paths.recorded,
            virtual_s=round(virtual_s, 3),
            cpu_s=round(cpu_s, 1),
            rounds=self._rounds,
            region_rounds=len(sealed),
            accepted=len(claims),
            rejected=sum(len(seal.rejected) for seals in self._seals for seal in seals),
            samples=samples,
            useful_samples_per_s=round(samples / virtual_s, 3),
            possible_samples_per_s=round(possible / virtual_s, 3),
            throughput_share=round(samples / possible, 4),
            online_mean=round(sum(self._online) / len(self._online), 1),
            online_least=min(self._online),
            online_most=max(self._online),
            power_changes=self._powered,
            folds_made=sum(folds.made for folds in self._folds),
            folds_shared=sum(folds.shared for folds in self._folds),
            loss_first=round(mean_loss(sealed[0][1]), 6),
            loss_last=round(mean_loss(sealed[-1][1]), 6),
            sent_bytes=self._network.sent_bytes,
            utilisation=round(busy_s / on_s, 4),
            params=self._paths.layout.numel,
            ended=f"{virtual_s / 3600:.1f} hours are over",
        )


def _with_seats(fleet: Fleet, regions: Sequence[Sequence[Line]]) -> Fleet:
    """The fleet with the coordinator, and with each region's own and its hub on the line of its member with the best
    uplink: `*` means all of them, and a region's name its two. Raises SH-LAB-02 if a host is called like one."""
    seen, specs = with_coordinator(fleet), dict(zip(names_of(fleet), specs_of(fleet), strict=True))
    for number, lines in enumerate(regions):
        best = specs[max(lines, key=lambda line: (line.up_bytes_s or float("inf"), line.name)).name]
        for name in (_seat(number), _hub(number)):
            always = {"name": name, "count": 1, "online": None, "offline": None}
            seen = with_host(seen, best.model_copy(update=always))
    return seen


def _seat(number: int) -> str:
    return f"seat{number}"


def _hub(number: int) -> str:
    return f"hub{number}"
