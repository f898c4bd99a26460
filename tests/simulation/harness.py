"""A fleet for scripted scenarios: the real services in the simulated world, with the referee looking on.

fleet = Fleet(seed=1, nodes=3)

async def story() -> None:
    fleet.start()
    await fleet.rounds(3)
    ...

fleet.play(story)
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
from shoal.base.ids import NodeId, RunId
from shoal.coordinator.admission import TOKEN_PREFIX, JoinToken, token_hash
from shoal.coordinator.claims import PREFIX as CLAIM_PREFIX
from shoal.coordinator.service import CoordinatorService
from shoal.data.manifest import Manifest, Shard
from shoal.node.options import NodeOptions
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.replica.blobs import BlobStore
from shoal.replica.fold import ARITHMETIC
from shoal.replica.state import encode_state, initial_state, state_hash
from shoal.replica.update import open_update
from shoal.runlog.chain import NO_HEAD, make_link, read_link
from shoal.runlog.entries import Body, Claim, Genesis
from shoal.runlog.files import FileLogStore
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe, parse_recipe
from shoal.wire.identity import Identity
from shoal.wire.versions import HERE, Speaks
from shoal.worlds.simulated.chaos import WatchedLog
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.network import HostDied, Link, SimNetwork
from shoal.worlds.simulated.referee import Referee
from shoal.worlds.simulated.toy import ToyTrainer, toy_layout

TOKEN = "let me in"
RUN = RunId("f" * 32)
DEADLINE_S = 10.0
COORDINATOR = "coordinator"
BEGAN_MS = 1_800_000_000_000


def toy_recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "model": {"kind": "own"},
        "data": {"source": "own", "items": 4096},
        "inner": {"kind": "own", "batch_size": 2},
        "strategy": {
            "preset": "diloco",
            "schedule": {"steps": 3, "fragments": 2},
            "seal": {"kind": "all-or-deadline", "deadline_s": DEADLINE_S},
        },
        "budget": {"rounds": 1000},
        "membership": {"min_nodes": 2, "lease_s": 4.0, "heartbeat_s": 1.0, "reconnect_s": 2.0},
        "storage": {"snapshot_every": 2},
    }
    return parse_recipe(json.dumps({**values, **changes}), environment={})


@dataclass
class Machine:
    """One computer through all its lives."""

    name: str
    identity: Identity
    speed: float = 1.0
    inbound: bool = True
    min_price_micro: int = 0
    speaks: Speaks = HERE
    link: Link = field(default_factory=Link)
    disk: SimDisk = field(default_factory=SimDisk)
    lives: int = 0
    host: SimHost | None = None
    service: Any = None
    task: asyncio.Task[Any] | None = None

    @property
    def node(self) -> NodeService:
        assert isinstance(self.service, NodeService)
        return self.service


class Fleet:
    """A coordinator and some nodes; nothing happens but what the story does."""

    def __init__(
        self,
        *,
        seed: int = 1,
        nodes: int = 3,
        recipe: Recipe | None = None,
        size: int = 40,
        trainer: type[ToyTrainer] = ToyTrainer,
    ) -> None:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        torch.set_num_threads(1)
        self.loop = SimLoop(seed, event_budget=2_000_000)
        self.network = SimNetwork(self.loop)
        self.recipe = recipe or toy_recipe()
        self._size = size
        self._make_trainer = trainer
        names = [COORDINATOR, *(f"n{i}" for i in range(nodes))]
        self.machines = {name: Machine(name, Identity(name.encode().ljust(32, b"."))) for name in names}
        self.referee = Referee({name: machine.identity.node for name, machine in self.machines.items()})
        self.network.tap = self.referee.frame
        self._liars: dict[str, Callable[..., NodeService]] = {}
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
        """Start these machines, or all."""
        for name in names or tuple(self.machines):
            self._start(self.machines[name])

    def lies(self, name: str, service: Callable[..., NodeService]) -> None:
        """This machine runs another service than the honest one."""
        self._liars[name] = service
        self.referee.watch(name, self.id_of(name), lies=True)

    def stop(self, name: str) -> None:
        """kill -STOP."""
        host = self.machines[name].host
        assert host is not None
        host.paused = True
        self.loop.pause(host.owner)

    def go_on(self, name: str) -> None:
        """kill -CONT."""
        host = self.machines[name].host
        assert host is not None
        host.paused = False
        self.loop.resume(host.owner)

    def kill(self, name: str) -> None:
        """kill -9 and power off."""
        host = self.machines[name].host
        assert host is not None and host.alive
        host.die()

    async def until(self, holds: Callable[[], bool], within_s: float, what: str = "it") -> float:
        """Wait for something to hold; how long it took."""
        began = self.loop.time()
        while not holds():
            self.check()
            assert self.loop.time() - began < within_s, (
                f"{what} did not happen within {within_s} s: {self.situation()}"
            )
            await asyncio.sleep(0.05)
        return self.loop.time() - began

    async def rounds(self, count: int, within_s: float = 60.0) -> float:
        """Wait for so many more seals."""
        goal = len(self.referee.rounds_sealed) + count
        return await self.until(lambda: len(self.referee.rounds_sealed) >= goal, within_s, f"round {goal}")

    # --- what can be seen --------------------------------------------------------------------------------

    @property
    def coordinator(self) -> CoordinatorService:
        service = self.machines[COORDINATOR].service
        assert isinstance(service, CoordinatorService)
        return service

    @property
    def view(self) -> RunView:
        return self.referee.view

    @property
    def nodes(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.name != COORDINATOR]

    def id_of(self, name: str) -> NodeId:
        return self.machines[name].identity.node

    def bodies(self, kind: type[Body]) -> list[Body]:
        found = [read_link(entry).entry.body for entry in self.referee.entries]
        return [body for body in found if isinstance(body, kind)]

    def contributors(self, position: int) -> set[str]:
        """Who is in the seal at this position."""
        step = next(step for step in self.view.path if step.position == position)
        names = {machine.identity.node: name for name, machine in self.machines.items()}
        return {names[update.claim.node] for update in step.updates}

    def update_of(self, claim: Claim, place: int = 0) -> torch.Tensor:
        """The values of an update, read from a node's disk; its work was planned when so many seals stood."""
        assert self.view.genesis is not None
        layout, codec_at = self.view.genesis.layout, self.recipe.strategy.fold_rules().codec_at
        disks = [SubDisk(machine.disk, f"runs/{RUN}") for machine in self.machines.values()]
        stores = [BlobStore(disk, lambda point: None) for disk in disks]
        blob = next(store.get(claim.blob) for store in stores if store.has(claim.blob))
        opened = open_update(blob, layout, tuple(index for index, _ in claim.base), codec_at(place))
        assert opened is not None
        parts = []
        for index, source in opened.items():
            part = torch.empty(layout.fragments[index].numel)
            source.decode(0, part.numel(), 1.0, part)
            parts.append(part)
        return torch.cat(parts)

    def states(self) -> dict[str, tuple[int, str]]:
        """Where each living node stands, and its state's hash."""
        return {
            machine.name: (machine.node.machine.at, state_hash(machine.node.state))
            for machine in self.nodes
            if machine.host is not None and machine.host.alive and machine.node.state is not None
        }

    def check(self) -> None:
        """Nobody honest has failed."""
        for name, machine in self.machines.items():
            if name in self._liars:
                continue
            if machine.task is not None and machine.task.done() and not machine.task.cancelled():
                error = machine.task.exception()
                if error is not None:
                    raise error

    def situation(self) -> str:
        waiting = self.coordinator.runs[RUN].machine.waiting_for if RUN in self.coordinator.runs else "?"
        doing = {
            m.name: m.node.machine.doing
            for m in self.nodes
            if m.service is not None and hasattr(m.service, "machine")
        }
        return f"coordinator waits for {waiting}; {doing}"

    # --- machines ----------------------------------------------------------------------------------------

    def _found(self) -> None:
        machine = self.machines[COORDINATOR]
        blobs = BlobStore(SubDisk(machine.disk, f"runs/{RUN}"), lambda point: None)
        shard = Shard(blob=blobs.put(bytes(range(256)) * 4), items=4096)
        manifest = Manifest(kind="tokens", dtype="uint8", train=(shard,), validation=(shard,), context=1)
        trainer = self._trainer()
        state = initial_state(trainer.layout, trainer.params(), self.recipe.strategy.fold_rules().slots)
        snapshot = encode_state(state)
        genesis = Genesis(
            coordinator=machine.identity.public,
            recipe=self.recipe.model_dump_json(),
            manifest=manifest,
            layout=trainer.layout,
            state=state_hash(state),
            snapshot=blobs.put(snapshot),
            snapshot_bytes=len(snapshot),
            arithmetic=ARITHMETIC,
        )
        link = make_link(machine.identity, RUN, NO_HEAD, 1, BEGAN_MS, genesis)
        store = FileLogStore(machine.disk, lambda point: None)
        store.append(RUN, 0, link.encoded)
        store.keep(RUN, f"{TOKEN_PREFIX}0", msgspec.msgpack.encode(JoinToken(sha256=token_hash(TOKEN))))
        self.referee.appended(0, link.encoded)

    def _trainer(self) -> ToyTrainer:
        layout = toy_layout(self._size, self.recipe.strategy.schedule.fragments)
        return self._make_trainer(layout, self.recipe.inner.batch_size)

    def _start(self, machine: Machine) -> None:
        machine.lives += 1
        host = SimHost(
            self.loop,
            self.network,
            machine.name,
            machine.lives,
            machine.disk,
            node=machine.identity.node,
            link=machine.link,
            speed=machine.speed,
            inbound=machine.inbound,
        )
        machine.host = host
        if machine.name == COORDINATOR:
            store = WatchedLog(host, self.referee)
            self.referee.restarted(list(store.read(RUN)), set(store.kept(RUN, CLAIM_PREFIX)))
            machine.service = CoordinatorService(host, machine.identity, store, speaks=machine.speaks)
            work = machine.service.serve()
        else:
            machine.service = self._node(machine, host)
            work = machine.service.run()
        machine.task = self.loop.spawn(host.owner, _live(work), machine.name)

    def _node(self, machine: Machine, host: SimHost) -> NodeService:
        invitation = Invitation(
            coordinator=self.machines[COORDINATOR].identity.node,
            addresses=(COORDINATOR,),
            run=RUN,
            token=TOKEN,
            name=machine.name,
            min_price_micro=machine.min_price_micro,
            speaks=machine.speaks,
        )
        make = self._liars.get(machine.name, NodeService)
        options = NodeOptions(step_seconds=0.1, give_up_s=1e9)
        return make(host, machine.identity, invitation, lambda *_: self._trainer(), options)


async def _live(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except HostDied:
        return None
    except BaseExceptionGroup as group:
        alive = group.subgroup(lambda error: not isinstance(error, HostDied | BaseExceptionGroup))
        if alive is None:
            return None
        raise _first(alive) from None


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
