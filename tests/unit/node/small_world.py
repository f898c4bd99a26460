"""A coordinator and some nodes as services in the simulated world, with an ear on every line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from runlog.small_log import BATCH, RUN, small_recipe

from shoal.coordinator.service import CoordinatorService
from shoal.node.options import NodeOptions
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.runlog.chain import read_link
from shoal.runlog.entries import Body
from shoal.runlog.files import FileLogStore
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe
from shoal.wire.messages import Message, decode
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.founding import TOKEN, found_run, identity_of
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.network import Link, SimNetwork
from shoal.worlds.simulated.scenario import draw_scenario
from shoal.worlds.simulated.toy import ToyTrainer, toy_layout

T = TypeVar("T")
SIZE, SEED = 40, 1


def world_recipe(
    *,
    steps: int = 2,
    deadline_s: float = 60.0,
    overlap: int = 0,
    seconds: float | None = None,
    **more: Any,
) -> Recipe:
    strategy = {
        "preset": "local-sgd",
        "schedule": {"steps": steps, "overlap": overlap, "seconds": seconds},
        "codec": {"kind": "none"},
        "seal": {"kind": "all-or-deadline", "deadline_s": deadline_s},
        "merge": {"kind": "mix", "alpha": 0.5} if overlap else {"kind": "replace"},
    }
    membership = {"lease_s": 4.0, "heartbeat_s": 1.0, "reconnect_s": 2.0, **more}
    return small_recipe(strategy=strategy, membership=membership)


class SmallWorld:
    """Nothing goes wrong here but what a test does."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.loop = SimLoop(SEED, event_budget=1_000_000)
        self.network = SimNetwork(self.loop)
        self.network.tap = self._hear
        self.heard: list[tuple[float, str, str, Message]] = []
        """(time, from, to, message) of every frame."""
        disk = SimDisk()
        scenario = replace(draw_scenario(SEED), recipe=recipe, torch=False, size=SIZE)
        found_run(disk, identity_of(SEED, "coordinator"), RUN, scenario)
        self.coordinator = self._coordinator(disk)
        self.nodes: dict[str, NodeService] = {}

    def _hear(self, sender: str, receiver: str, frame: bytes) -> None:
        self.heard.append((self.loop.time(), sender, receiver, decode(frame)))

    def _host(self, name: str, disk: SimDisk) -> SimHost:
        node = identity_of(SEED, name).node
        return SimHost(self.loop, self.network, name, 1, disk, node=node, link=Link())

    def _coordinator(self, disk: SimDisk) -> CoordinatorService:
        host = self._host("coordinator", disk)
        service = CoordinatorService(
            host, identity_of(SEED, "coordinator"), FileLogStore(disk, lambda point: None)
        )
        self.loop.spawn(host.owner, service.serve(), "coordinator")
        return service

    def join(
        self, name: str, *, service: Callable[..., NodeService] = NodeService, **options: Any
    ) -> NodeService:
        host = self._host(name, SimDisk())
        invitation = Invitation(
            coordinator=identity_of(SEED, "coordinator").node,
            addresses=("coordinator",),
            run=RUN,
            token=TOKEN,
            name=name,
        )

        def make_trainer(*_: object) -> ToyTrainer:
            return ToyTrainer(toy_layout(SIZE, 1), BATCH)

        node = service(
            host, identity_of(SEED, name), invitation, make_trainer, NodeOptions(give_up_s=1e9, **options)
        )
        self.nodes[name] = node
        self.loop.spawn(host.owner, node.run(), name)
        return node

    # --- what a test does and sees -------------------------------------------------------------------------

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await self.coordinator.ready.wait()
            await story()

        self.loop.run(main())
        assert self.loop.failures == []

    async def until(self, holds: Callable[[], object], within_s: float) -> float:
        """Wait for something to hold; how long it took, in virtual seconds."""
        began = self.loop.time()
        while not holds():
            assert self.loop.time() - began < within_s, f"not within {within_s} s"
            await asyncio.sleep(0.05)
        return self.loop.time() - began

    async def sealed(self, rounds: int, within_s: float) -> float:
        return await self.until(lambda: len(self.view.path) >= rounds, within_s)

    @property
    def view(self) -> RunView:
        return self.coordinator.runs[RUN].machine.view

    def bodies(self, kind: type[Body]) -> list[Body]:
        entries = self.coordinator.store.read(RUN)
        return [body for entry in entries if isinstance(body := read_link(entry).entry.body, kind)]

    def said(self, sender: str, kind: type[T]) -> list[tuple[float, T]]:
        """What somebody said, and when."""
        return [(when, word) for when, who, _, word in self.heard if who == sender and isinstance(word, kind)]
