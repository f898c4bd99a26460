"""A parent run, its hubs and their regions in the simulated world, with a referee for every log.

country = Country(regions={"a": 3, "b": 3})

async def story() -> None:
    country.start()
    await country.rounds(4)

country.play(story)
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from shoal.base.disk import SubDisk
from shoal.base.ids import RunId
from shoal.coordinator.admission import TOKEN_PREFIX, JoinToken, token_hash
from shoal.coordinator.service import CoordinatorService
from shoal.data.manifest import Manifest, Shard
from shoal.hub.region import Region
from shoal.hub.service import HubService
from shoal.node.options import NodeOptions
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.replica.blobs import BlobStore
from shoal.replica.fold import ARITHMETIC
from shoal.replica.state import encode_state, initial_state, state_hash
from shoal.runlog.chain import NO_HEAD, make_link
from shoal.runlog.entries import Genesis
from shoal.runlog.files import FileLogStore
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe, parse_recipe
from shoal.wire.identity import Identity
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.network import Link, SimNetwork
from shoal.worlds.simulated.toy import ToyTrainer, toy_layout

from .harness import BEGAN_MS, TOKEN, _live

RUN = RunId("e" * 32)
NEAR = Link(latency_s=0.001, jitter_s=0.0, up_bytes_s=1e8, down_bytes_s=1e8)
FAR = Link(latency_s=0.15, jitter_s=0.02, up_bytes_s=2e4, down_bytes_s=2e4)
"""Between regions: 160 kbit/s."""


def halos_recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "model": {"kind": "own"},
        "data": {"source": "own", "items": 4096},
        "inner": {"kind": "own", "batch_size": 2},
        "strategy": {
            "preset": "halos",
            "schedule": {"steps": 12, "overlap": 24, "fragments": 2},
            "region": {
                "schedule": {"steps": 3, "fragments": 2},
                "seal": {"kind": "all-or-deadline", "deadline_s": 10.0},
            },
        },
        "budget": {"rounds": 1000},
        "membership": {"min_nodes": 2, "lease_s": 4.0, "heartbeat_s": 1.0, "reconnect_s": 2.0},
        "storage": {"snapshot_every": 2},
    }
    return parse_recipe(json.dumps({**values, **changes}), environment={})


@dataclass
class Machine:
    name: str
    link: Link
    region: str = ""
    speed: float = 1.0
    disk: SimDisk = field(default_factory=SimDisk)
    lives: int = 0
    host: SimHost | None = None
    service: Any = None
    task: asyncio.Task[Any] | None = None

    @property
    def identity(self) -> Identity:
        return Identity(self.name.encode().ljust(32, b"."))


class Country:
    """Machines by name: `parent`, for each region `hub-a` and its coordinator `seat-a`, and members `a0`, `a1`, ..."""

    def __init__(
        self, regions: dict[str, int], *, seed: int = 1, recipe: Recipe | None = None, size: int = 40
    ) -> None:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        torch.set_num_threads(1)
        self.loop = SimLoop(seed, event_budget=3_000_000)
        self.network = SimNetwork(self.loop)
        self.recipe = recipe or halos_recipe()
        self.regions = regions
        self._size = size
        names = [Machine("parent", FAR)]
        for region, members in regions.items():
            names += [Machine(f"seat-{region}", NEAR, region), Machine(f"hub-{region}", FAR, region)]
            names += [Machine(f"{region}{number}", NEAR, region) for number in range(members)]
        self.machines = {machine.name: machine for machine in names}
        self.views: dict[str, RunView] = {}
        self._found()

    # --- the story's words -------------------------------------------------------------------------------

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await story()

        try:
            self.loop.run(main())
        finally:
            assert not self.loop.failures, self.loop.failures

    def start(self, *names: str) -> None:
        for name in names or tuple(self.machines):
            self._start(self.machines[name])

    def kill(self, *names: str) -> None:
        for name in names:
            host = self.machines[name].host
            assert host is not None
            host.die()

    async def until(self, holds: Callable[[], bool], within_s: float, what: str = "it") -> float:
        began = self.loop.time()
        while not holds():
            self.check()
            assert self.loop.time() - began < within_s, f"{what} did not happen: {self.situation()}"
            await asyncio.sleep(0.05)
        return self.loop.time() - began

    async def rounds(self, count: int, within_s: float = 200.0) -> float:
        """Wait for so many more seals of the parent run."""
        goal = len(self.view.path) + count
        return await self.until(lambda: len(self.view.path) >= goal, within_s, f"{goal} seals")

    def check(self) -> None:
        for machine in self.machines.values():
            if machine.task is not None and machine.task.done() and not machine.task.cancelled():
                error = machine.task.exception()
                if error is not None:
                    raise error

    # --- what can be seen --------------------------------------------------------------------------------

    @property
    def view(self) -> RunView:
        runs = self.machines["parent"].service.runs
        return runs[RUN].machine.view if RUN in runs else RunView()

    def hub(self, region: str) -> HubService:
        service = self.machines[f"hub-{region}"].service
        assert isinstance(service, HubService)
        return service

    def region_view(self, region: str) -> RunView:
        return self.hub(region).region.view

    def situation(self) -> str:
        doing = {
            name: machine.service.machine.doing
            for name, machine in self.machines.items()
            if isinstance(machine.service, NodeService)
        }
        return f"{doing}; parent at {self.view.at}, {self.view.stopped}"

    # --- machines ----------------------------------------------------------------------------------------

    def _trainer(self) -> ToyTrainer:
        layout = toy_layout(self._size, self.recipe.strategy.schedule.fragments)
        return ToyTrainer(layout, self.recipe.inner.batch_size)

    def _found(self) -> None:
        machine = self.machines["parent"]
        blobs = BlobStore(SubDisk(machine.disk, f"runs/{RUN}"), lambda point: None)
        shard = Shard(blob=blobs.put(bytes(range(256)) * 4), items=4096)
        trainer = self._trainer()
        state = initial_state(trainer.layout, trainer.params(), self.recipe.strategy.fold_rules().slots)
        snapshot = encode_state(state)
        genesis = Genesis(
            coordinator=machine.identity.public,
            recipe=self.recipe.model_dump_json(),
            manifest=Manifest(kind="tokens", dtype="uint8", train=(shard,), validation=(shard,), context=1),
            layout=trainer.layout,
            state=state_hash(state),
            snapshot=blobs.put(snapshot),
            snapshot_bytes=len(snapshot),
            arithmetic=ARITHMETIC,
        )
        store = FileLogStore(machine.disk, lambda point: None)
        store.append(RUN, 0, make_link(machine.identity, RUN, NO_HEAD, 1, BEGAN_MS, genesis).encoded)
        store.keep(RUN, f"{TOKEN_PREFIX}0", msgspec.msgpack.encode(JoinToken(sha256=token_hash(TOKEN))))

    def _start(self, machine: Machine) -> None:
        machine.lives += 1
        host = machine.host = SimHost(
            self.loop,
            self.network,
            machine.name,
            machine.lives,
            machine.disk,
            node=machine.identity.node,
            link=machine.link,
            speed=machine.speed,
        )
        if machine.name == "parent" or machine.name.startswith("seat-"):
            store = FileLogStore(host.disk, host.reached)
            machine.service = CoordinatorService(host, machine.identity, store)
            work = machine.service.serve()
        elif machine.name.startswith("hub-"):
            machine.service = self._hub(machine, host)
            work = machine.service.run()
        else:
            work = self._member(machine, host)
        machine.task = self.loop.spawn(host.owner, _live(work), machine.name)

    def _hub(self, machine: Machine, host: SimHost) -> HubService:
        seat = self.machines[f"seat-{machine.region}"].service
        region = Region(seat, machine.region, min_nodes=self.regions[machine.region])
        invitation = Invitation(
            coordinator=self.machines["parent"].identity.node,
            addresses=("parent",),
            run=RUN,
            token=TOKEN,
            name=machine.name,
        )
        options = NodeOptions(give_up_s=1e9)
        return HubService(host, machine.identity, invitation, lambda *_: self._trainer(), options, region)

    async def _member(self, machine: Machine, host: SimHost) -> str:
        """Join the region once there is one."""
        seat = self.machines[f"seat-{machine.region}"]
        region = self.hub(machine.region).region
        await region.opened.wait()
        invitation = Invitation(
            coordinator=seat.identity.node,
            addresses=(seat.name,),
            run=region.run,
            token=await region.new_token(),
            name=machine.name,
        )
        options = NodeOptions(step_seconds=0.1, give_up_s=1e9)
        machine.service = NodeService(host, machine.identity, invitation, lambda *_: self._trainer(), options)
        return await machine.service.run()
