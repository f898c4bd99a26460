"""A fleet file in the simulated world: the same hosts, links, speeds and events as in the lab, in virtual time.

In flow a fleet, how many nodes and a recipe; out flow what the run did: rounds, loss, bytes, how busy the devices
were. Invariant: coordinator, nodes, log and fold are the product's own; lines, paths and changes are what
`shoal.lab.links` says of the fleet, so that lab and simulation cannot disagree about what a file means.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.apps.bench import calm
from shoal.apps.flat import without_regions
from shoal.apps.progress import Bar
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId, RunId
from shoal.coordinator.events import StopAsked
from shoal.coordinator.service import CoordinatorService
from shoal.data.manifest import Manifest, Shard
from shoal.lab.fleet import Fleet, HostSpec
from shoal.lab.library import with_host
from shoal.lab.links import Between, Change, Network, Power, Tune, fleet_to_links, timeline
from shoal.node.options import NodeOptions
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.runlog.entries import Claim, Entry, Seal
from shoal.strategy.recipe import Recipe, parse_recipe
from shoal.training.trainer import Trainer
from shoal.wire.signed import parse
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.founding import TOKEN, identity_of
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.network import Link
from shoal.worlds.simulated.toy import ToyTrainer, toy_layout

STEP_S = 0.2
"""What a step takes a device of speed 1, where the fleet does not say."""
UNLIMITED_BYTES_S = 1.25e9
LEAST_LEFT = 1e-6
"""Of the rate of a line that loses everything."""
GIVE_UP_S = 600.0
LOOK_S = 1.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of it."""

    fleet: str
    nodes: int
    rounds: int
    virtual_s: float
    cpu_s: float
    accepted: int
    rejected: int
    updates_per_round: float
    steps: int
    loss_first: float
    loss_last: float
    sent_bytes: int
    utilisation: float
    """Of all devices' time from start to end: the share in which they trained."""
    samples: int
    useful_samples_per_s: float
    """Of updates that were sealed, until the last seal."""
    possible_samples_per_s: float
    """If every device had trained all the time."""
    throughput_share: float
    events: int
    params: int
    ended: str


def toy_recipe(preset: str, rounds: int, settings: Sequence[str]) -> Recipe:
    """What the toy model trains by. Raises SH-RECIPE-02 or -03."""
    values = {
        "name": "simulated fleet",
        "model": {"kind": "mlp", "width": 8, "layers": 1},
        "data": {"source": "digits"},
        "inner": {"kind": "sgd", "lr": 0.1, "batch_size": 8},
        "strategy": {"preset": preset},
        "budget": {"rounds": rounds},
        "evaluation": {"every": 1000},
    }
    return without_regions(parse_recipe(json.dumps(values), overrides=settings, environment={}), preset)


def play(fleet: Fleet, recipe: Recipe, *, params: int, most_s: float, seed: int) -> Played:
    """Run it until its budget is spent or so much virtual time is over. Raises what a node raises."""
    loop = SimLoop(seed, event_budget=calm.NO_END)
    began = time.process_time()
    world = FleetWorld(loop, fleet, recipe, params, seed)
    return loop.run(world.play(most_s, lambda: time.process_time() - began))


class FleetNetwork(calm.CountedNetwork):
    """The simulated network with the fleet's paths: what a pair's override adds to the sum of two lines."""

    def __init__(self, loop: SimLoop, links: Network) -> None:
        super().__init__(loop)
        self.change(links)

    def change(self, links: Network) -> None:
        """The network is another one from now on."""
        self.links = links
        self._beyond: dict[tuple[str, str], tuple[float, float]] = {}

    def delay(self, sender: SimHost, receiver: SimHost, size: int) -> float:
        way = (sender.name, receiver.name)
        extra_s, byte_s = self._beyond.get(way) or self._look_up(way)
        return max(0.0, super().delay(sender, receiver, size) + extra_s) + size * byte_s

    def _look_up(self, way: tuple[str, str]) -> tuple[float, float]:
        """What a path adds to its two lines: seconds, and seconds a byte; kept until something changes."""
        names, found = self.links.names, (0.0, 0.0)
        if way[0] in names and way[1] in names:
            path, lines = self.links.path(*way), (self.links.lines[names[name]] for name in way)
            rate = path.rate_bytes_s
            found = (path.latency_s - sum(line.latency_s for line in lines), 1 / rate if rate else 0.0)
        self._beyond[way] = found
        return found


class CountedHost(SimHost):
    """Also says how long its device trained, which it does not while it is asleep."""

    busy_s: dict[str, float]
    slept_s = asleep_at = 0.0

    async def work(self, job: Callable[[], T], *, seconds: float = 0.0) -> T:
        busy_s = left_s = seconds / self._speed
        while left_s > 0:
            slept_s = self.slept_s
            await asyncio.sleep(left_s)
            left_s = self.slept_s - slept_s
        self.busy_s[self.name] += busy_s
        return await super().work(job)

    def switch(self, on: bool) -> None:
        """Awake or asleep: then nothing of it runs, and what is sent to it waits or is lost."""
        if self.paused != on:
            return
        if on:
            self.slept_s += self._loop.time() - self.asleep_at
        self.asleep_at, self.paused = self._loop.time(), not on
        (self._loop.resume if on else self._loop.pause)(self.owner)


class FleetWorld:
    """Coordinator and nodes of a fleet, in virtual time. What they train may be another's: see `_trainer`."""

    def __init__(self, loop: SimLoop, fleet: Fleet, recipe: Recipe, params: int, seed: int) -> None:
        self._loop, self._fleet, self._recipe, self._seed = loop, fleet, recipe, seed
        self._params = params
        self._lines = fleet_to_links(fleet).lines
        self._seen = with_coordinator(fleet)
        self._network = FleetNetwork(loop, fleet_to_links(self._seen))
        self._busy_s: dict[str, float] = defaultdict(float)
        self._nodes: dict[str, CountedHost] = {}
        self._seals: list[Seal] = []
        self._sealed_s = 0.0
        self._events = 0
        self._run = RunId(f"{seed:032x}")
        self._identity = identity_of(seed, calm.COORDINATOR)
        disk = SimDisk()
        calm.found(disk, self._run, self._calm_fleet())
        self._host_of_coordinator = self._host(calm.COORDINATOR, disk, calm.FAST, 1.0)
        log = calm.WatchedLog(self._host_of_coordinator, self._appended)
        self._coordinator = CoordinatorService(self._host_of_coordinator, self._identity, log)

    async def play(self, most_s: float, cpu_s: Callable[[], float]) -> Played:
        serving = self._spawn(self._host_of_coordinator, self._coordinator.serve(), calm.COORDINATOR)
        nodes = []
        for line in self._lines:
            host = self._host(line.name, SimDisk(), link_of(self._network.links, line.name), line.speed)
            self._nodes[line.name] = host
            nodes.append(self._spawn(host, self._node(host).run(), line.name))
        changing = asyncio.create_task(self._change(), name="events")
        ended = await self._wait(serving, nodes, most_s)
        changing.cancel()
        return self._played(cpu_s(), ended, len(nodes))

    async def _wait(self, serving: asyncio.Task[Any], nodes: list[asyncio.Task[Any]], most_s: float) -> str:
        """Until the run has stopped, or the time is over; why."""
        with Bar() as bar:
            while self._loop.time() < most_s:
                await asyncio.sleep(LOOK_S)
                bar.at(*self._how_far(most_s))
                for task in (serving, *nodes):
                    if task.done() and not task.cancelled():
                        task.result()
                view = self._coordinator.runs[self._run].machine.view
                if view.stopped is not None:
                    return str(view.stopped)
                if self._has_enough():
                    break
        stop = self._coordinator.post(self._run, StopAsked("the time is over"))
        await self._spawn(self._host_of_coordinator, stop, "stop")
        return "the time is over"

    def _how_far(self, most_s: float) -> tuple[float, float, str]:
        """By time or by rounds, whichever will end it first."""
        done, rounds = len(self._seals), self._recipe.budget.rounds
        if rounds and done / rounds >= self._loop.time() / most_s:
            return done, rounds, "rounds"
        return self._loop.time(), most_s, "virtual seconds"

    def _has_enough(self) -> bool:
        """Whether to end it now, though its budget is not spent."""
        return False

    async def _change(self) -> None:
        for step in timeline(self._seen):
            await asyncio.sleep(max(0.0, step.at_s - self._loop.time()))
            self._events += 1
            self._carry_out(step.change)

    def _carry_out(self, change: Change) -> None:
        network = self._network
        if not isinstance(change, Power):  # Who is off says nothing, whatever its path.
            network.change(network.links.after(change))
        match change:
            case Between(ways, cut):
                network.faults.cut = network.faults.cut | ways if cut else network.faults.cut - ways
            case Power(hosts, on):
                for name in hosts:
                    if name in self._nodes:
                        self._nodes[name].switch(on)
            case Tune(hosts, _):
                for name in hosts:
                    if name in self._nodes:
                        network.hosts[name].link = link_of(network.links, name)

    # --- parts -------------------------------------------------------------------------------------------

    def _host(self, name: str, disk: SimDisk, link: Link, speed: float) -> CountedHost:
        node = identity_of(self._seed, name).node
        host = CountedHost(self._loop, self._network, name, 1, disk, node=node, link=link, speed=speed)
        host.busy_s = self._busy_s
        return host

    def _node(self, host: SimHost) -> NodeService:
        invitation = Invitation(
            coordinator=self._identity.node,
            addresses=(calm.COORDINATOR,),
            run=self._run,
            token=TOKEN,
            name=host.name,
        )
        options = NodeOptions(step_seconds=self._fleet.step or STEP_S, give_up_s=GIVE_UP_S)
        return NodeService(
            host, identity_of(self._seed, host.name), invitation, lambda *_: self._trainer(), options
        )

    def _manifest(self) -> Manifest:
        shard = Shard(blob=BlobId("0" * 64), items=1 << 20)
        return Manifest(
            kind="tokens", dtype="uint8", train=(shard,), validation=(shard,), context=1, vocab_size=256
        )

    def _trainer(self) -> Trainer:
        layout = toy_layout(self._params, self._recipe.strategy.schedule.fragments)
        return ToyTrainer(layout, self._recipe.inner.batch_size)

    def _calm_fleet(self) -> calm.Fleet:
        return calm.Fleet(
            recipe=self._recipe,
            manifest=self._manifest(),
            make_trainer=self._trainer,
            computers=(),
            seed=self._seed,
        )

    def _appended(self, entry: Entry) -> None:
        if isinstance(entry.body, Seal):
            self._seals.append(entry.body)
            self._sealed_s = self._loop.time()

    def _spawn(self, host: SimHost, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._loop.spawn(host.owner, work, name)

    def _played(self, cpu_s: float, ended: str, nodes: int) -> Played:
        if not self._seals:
            raise ShoalError(
                "SH-RUN-01",
                f"no round was sealed ({ended})",
                "give it more time, or membership.min_nodes less",
            )
        claims = [claims_of(seal) for seal in self._seals]
        accepted, virtual_s = sum(len(found) for found in claims), self._loop.time()
        samples = sum(claim.samples for found in claims for claim in found)
        speed = sum(line.speed for line in self._lines)
        possible = self._sealed_s * speed * self._recipe.inner.batch_size / (self._fleet.step or STEP_S)
        return Played(
            fleet=self._fleet.name,
            nodes=nodes,
            rounds=len(self._seals),
            virtual_s=round(virtual_s, 3),
            cpu_s=round(cpu_s, 2),
            accepted=accepted,
            rejected=sum(len(seal.rejected) for seal in self._seals),
            updates_per_round=round(accepted / len(self._seals), 2),
            steps=sum(claim.steps for found in claims for claim in found),
            loss_first=mean_loss(next(found for found in claims if found)),
            loss_last=mean_loss(next(found for found in reversed(claims) if found)),
            sent_bytes=self._network.sent_bytes,
            utilisation=round(sum(self._busy_s.values()) / (nodes * virtual_s), 4),
            samples=samples,
            useful_samples_per_s=round(samples / self._sealed_s, 3),
            possible_samples_per_s=round(possible / self._sealed_s, 3),
            throughput_share=round(samples / possible, 4),
            events=self._events,
            params=self._params,
            ended=ended,
        )


def with_coordinator(fleet: Fleet) -> Fleet:
    """As in the lab: who is cut off from `*` is cut off from the coordinator too. Raises SH-LAB-02 if a host is called
    like it."""
    latency = f"{1e3 * calm.FAST.latency_s:g} ms"
    return with_host(fleet, HostSpec.model_validate({"name": calm.COORDINATOR, "latency": latency}))


def link_of(links: Network, name: str) -> Link:
    """A line as the simulated network has it: no packets, so that what is lost is a rate that much lower."""
    line = links.lines[links.names[name]]
    left = max(LEAST_LEFT, 1 - line.loss)
    return Link(
        latency_s=line.latency_s,
        jitter_s=line.jitter_s,
        up_bytes_s=left * (line.up_bytes_s or UNLIMITED_BYTES_S),
        down_bytes_s=left * (line.down_bytes_s or UNLIMITED_BYTES_S),
    )


def claims_of(seal: Seal) -> list[Claim]:
    found = [parse(item.claim.payload, Claim) for item in seal.accepted]
    return [claim for claim in found if claim is not None]


def mean_loss(claims: list[Claim]) -> float:
    return sum(claim.loss for claim in claims) / len(claims)
