"""A run in the simulated world in which nothing goes wrong: the real coordinator and nodes, counted to the byte.

In flow a recipe, machines with speeds and links, and a trainer for each; out flow the log as a view, the final state
and what travelled. Invariant: services, log and fold are the product's own; the corpus is in every node's memory
from the start, so that only states, updates and control traffic are on the wire.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from shoal.apps.progress import Bar, Far
from shoal.base.disk import SubDisk
from shoal.base.errors import ShoalError
from shoal.base.host import Peer
from shoal.base.ids import BlobId, RunId
from shoal.coordinator.admission import TOKEN_PREFIX, JoinToken, token_hash
from shoal.coordinator.events import StopAsked
from shoal.coordinator.service import CoordinatorService
from shoal.data.manifest import Manifest, Shard
from shoal.node.options import NodeOptions
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.replica.blobs import BlobStore
from shoal.replica.fold import ARITHMETIC
from shoal.replica.state import State, encode_state, initial_state, state_hash
from shoal.runlog.chain import NO_HEAD, make_link, read_link
from shoal.runlog.entries import Entry, Genesis, Seal
from shoal.runlog.files import FileLogStore
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe
from shoal.strategy.signing import founder
from shoal.training.trainer import Trainer
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.founding import BEGAN_MS, TOKEN, identity_of
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop, hush
from shoal.worlds.simulated.network import Link, SimNetwork

T = TypeVar("T")
COORDINATOR = "coordinator"
STALLED_S = 3600.0
"""Virtual time without an entry after which a run is given up."""
NO_END = 10**12
FAST = Link(latency_s=0.001, jitter_s=0.0, up_bytes_s=1.25e9, down_bytes_s=1.25e9)

LOOK_EVERY_S = 0.05


class Observer:
    """Sees what happens. This one looks away."""

    def began(self, moved: Moved) -> None:
        """It begins; what is counted, as it is counted."""

    def appended(self, entry: Entry) -> None:
        """An entry is in the log."""

    def reached(self, now: float, state: State) -> str:
        """The first computer has a new state; why the run should stop now, or "" to go on."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computer:
    name: str
    speed: float = 1.0
    """Steps a second, against a device of speed 1."""
    link: Link = field(default_factory=lambda: FAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    recipe: Recipe
    manifest: Manifest
    make_trainer: Callable[[], Trainer]
    computers: tuple[Computer, ...]
    step_s: float = 0.1
    """What a step takes a device of speed 1."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that arrived, by blob, and by (host, blob); all bytes by host, and what hosts computed."""

    blobs: Counter[BlobId] = field(default_factory=Counter)
    taken: Counter[tuple[str, BlobId]] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    cpu_s: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """By host and job: seconds of this machine's processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    view: RunView
    state: State
    moved: Moved
    wire_bytes: int
    """The transport's own count of everything that was sent."""
    virtual_s: float


def play(fleet: Fleet, observer: Observer) -> Played:
    """Run it to its end. Raises what a node raises, and SH-RUN-01 if it comes to a standstill."""
    hush()
    loop = SimLoop(fleet.seed, event_budget=NO_END)
    calm = _Calm(loop, fleet, observer)
    try:
        with calm.bar:
            return loop.run(calm.play())
    except BaseExceptionGroup as group:
        raise innermost(group) from group


class CountedNetwork(SimNetwork):
    """The simulated network, which also says whose blobs its bytes were."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop)
        self.moved = Moved()

    def delay(self, sender: SimHost, receiver: SimHost, size: int) -> float:
        self.moved.sent[sender.name] += size
        self.moved.received[receiver.name] += size
        return super().delay(sender, receiver, size)

    async def get(
        self, here: SimHost, peer: Peer, path: str, start: int, stop: int, timeout_s: float
    ) -> bytes:
        data = await super().get(here, peer, path, start, stop, timeout_s)
        self._count(here.name, path, len(data))
        return data

    async def put(self, here: SimHost, peer: Peer, path: str, body: bytes, timeout_s: float) -> bytes:
        reply = await super().put(here, peer, path, body, timeout_s)
        self._count(peer.address, path, len(body))
        return reply

    def _count(self, receiver: str, path: str, size: int) -> None:
        _, kind, *rest = path.split("/")
        if kind == "blobs":
            blob = BlobId(rest[0])
            self.moved.blobs[blob] += size
            self.moved.taken[receiver, blob] += size


class _TimedHost(SimHost):
    """A simulated host, which also says what its jobs took this machine."""

    cpu_s: dict[tuple[str, str], float]

    async def work(self, job: Callable[[], T], *, seconds: float = 0.0) -> T:
        named = job.func if isinstance(job, partial) else job

        def timed() -> T:
            began = time.process_time()
            result = job()
            self.cpu_s[self.name, named.__name__] += time.process_time() - began
            return result

        return await super().work(timed, seconds=seconds)


class WatchedLog(FileLogStore):
    def __init__(self, host: SimHost, appended: Callable[[Entry], None]) -> None:
        super().__init__(host.disk, host.reached)
        self._appended = appended

    def append(self, run: RunId, position: int, entry: bytes) -> None:
        super().append(run, position, entry)
        self._appended(read_link(entry).entry)


class _Calm:
    def __init__(self, loop: SimLoop, fleet: Fleet, observer: Observer) -> None:
        self._loop, self._fleet, self._observer = loop, fleet, observer
        self._network = CountedNetwork(loop)
        observer.began(self._network.moved)
        self._run = RunId(f"{fleet.seed:032x}")
        self._identity = identity_of(fleet.seed, COORDINATOR)
        self._nodes: list[NodeService] = []
        self._entries = 0
        self.bar = Bar()
        disk = SimDisk()
        found(disk, self._run, fleet)
        host = self._host(Computer(name=COORDINATOR), disk)
        self._coordinator = CoordinatorService(host, self._identity, WatchedLog(host, self._appended))
        self._tasks = [self._spawn(host, self._coordinator.serve(), COORDINATOR)]

    async def play(self) -> Played:
        for computer in self._fleet.computers:
            host = self._host(computer, SimDisk())
            node = self._node(host, computer)
            self._nodes.append(node)
            self._tasks.append(self._spawn(host, node.run(), computer.name))
        looking = asyncio.create_task(self._look(self._nodes[0]), name="look")
        await self._wait({*self._tasks[1:]})
        looking.cancel()
        view = self._coordinator.runs[self._run].machine.view
        state = self._nodes[0].state
        assert state is not None and self._nodes[0].machine.at == view.at
        return Played(
            view=view,
            state=state,
            moved=self._network.moved,
            wire_bytes=self._network.sent_bytes,
            virtual_s=self._loop.time(),
        )

    async def _wait(self, working: set[asyncio.Task[Any]]) -> None:
        """Until every node has finished. Whoever fails ends it for all; so does a standstill."""
        seen = -1
        while working:
            done, _ = await asyncio.wait(
                {*working, self._tasks[0]}, timeout=STALLED_S, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            if not done and self._entries == seen:
                raise ShoalError(
                    "SH-RUN-01",
                    f"nothing happened for {STALLED_S:g} simulated seconds after {seen} entries",
                    "raise the seal's deadline_s, or lower schedule.steps",
                )
            seen = self._entries
            working -= done

    def _spawn(self, host: SimHost, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._loop.spawn(host.owner, work, name)

    def _host(self, computer: Computer, disk: SimDisk) -> SimHost:
        node = identity_of(self._fleet.seed, computer.name).node
        host = _TimedHost(
            self._loop,
            self._network,
            computer.name,
            1,
            disk,
            node=node,
            link=computer.link,
            speed=computer.speed,
        )
        host.cpu_s = self._network.moved.cpu_s
        return host

    def _node(self, host: SimHost, computer: Computer) -> NodeService:
        invitation = Invitation(
            coordinator=self._identity.node,
            addresses=(COORDINATOR,),
            run=self._run,
            token=TOKEN,
            name=computer.name,
        )
        options = NodeOptions(step_seconds=self._fleet.step_s, give_up_s=STALLED_S)
        identity = identity_of(self._fleet.seed, computer.name)
        return NodeService(host, identity, invitation, lambda *_: self._fleet.make_trainer(), options)

    def _appended(self, entry: Entry) -> None:
        self._entries += 1
        if isinstance(entry.body, Seal):
            self.bar.at(*how_far(self._fleet.recipe, self._coordinator.runs[self._run].machine.view))
        self._observer.appended(entry)

    async def _look(self, node: NodeService) -> None:
        """Show the observer each state that this node reaches, until it has seen enough."""
        seen: State | None = None
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if node.state is None or node.state is seen:
                continue
            seen = node.state
            if reason := self._observer.reached(self._loop.time(), seen):
                host = self._network.hosts[COORDINATOR]
                self._spawn(host, self._coordinator.post(self._run, StopAsked(reason)), "stop")
                return


def how_far(recipe: Recipe, view: RunView) -> Far:
    """By rounds or tokens, whichever the run has a budget of."""
    if recipe.budget.tokens:
        return view.totals.tokens, recipe.budget.tokens, "tokens"
    return view.totals.rounds, recipe.budget.rounds or math.inf, "rounds"


def found(disk: SimDisk, run: RunId, fleet: Fleet) -> None:
    """Genesis, first state and join token on the coordinator's disk. Its manifest has the corpus's measures, and an
    empty blob in the place of its shards."""
    signer = founder(fleet.recipe, identity_of(fleet.seed, COORDINATOR))
    blobs = BlobStore(SubDisk(disk, f"runs/{run}"), lambda point: None)
    trainer = fleet.make_trainer()
    rules = fleet.recipe.strategy.fold_rules()
    state = initial_state(trainer.layout, trainer.params(), rules.slots)
    snapshot, empty = encode_state(state), blobs.put(b"in memory")
    genesis = Genesis(
        coordinator=signer.public,
        recipe=fleet.recipe.model_dump_json(),
        manifest=msgspec.structs.replace(
            fleet.manifest,
            train=(Shard(blob=empty, items=fleet.manifest.train_items),),
            validation=(),
            tokenizer=None,
        ),
        layout=trainer.layout,
        state=state_hash(state),
        snapshot=blobs.put(snapshot),
        snapshot_bytes=len(snapshot),
        arithmetic=ARITHMETIC,
    )
    store = FileLogStore(disk, lambda point: None)
    store.append(run, 0, make_link(signer, run, NO_HEAD, 1, BEGAN_MS, genesis).encoded)
    token = JoinToken(sha256=token_hash(TOKEN))
    store.keep(run, f"{TOKEN_PREFIX}0", msgspec.msgpack.encode(token))


def innermost(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return innermost(inner) if isinstance(inner, BaseExceptionGroup) else inner
