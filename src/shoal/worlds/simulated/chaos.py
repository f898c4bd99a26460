"""Chaos: one seed, one catastrophe. Trouble for a while, then heal, then progress demanded.

In flows a seed; out flows a fingerprint, or `Foul`. Invariant: coordinator and nodes are the very services
that run in the real world; only their `Host` is simulated.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec
import torch

from shoal.base.disk import SubDisk
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.coordinator.admission import JoinToken, token_hash
from shoal.coordinator.claims import PREFIX as CLAIM_PREFIX
from shoal.coordinator.service import TOKEN_PREFIX, CoordinatorService
from shoal.data.dataset import open_dataset
from shoal.data.manifest import Manifest, Shard
from shoal.data.prepare import prepare
from shoal.node.service import NodeOptions, NodeService
from shoal.node.session import Invitation
from shoal.replica.blobs import BlobStore, chunk_list
from shoal.replica.fold import ARITHMETIC
from shoal.replica.state import encode_state, initial_state, state_hash
from shoal.runlog.chain import NO_HEAD, make_link
from shoal.runlog.entries import Genesis
from shoal.runlog.files import FileLogStore
from shoal.training.spec import AdamWSpec
from shoal.training.trainer import TorchTrainer, Trainer
from shoal.wire.identity import Identity
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.network import Faults, HostDied, SimNetwork
from shoal.worlds.simulated.referee import Foul, Referee
from shoal.worlds.simulated.scenario import Machine, Scenario, draw_scenario
from shoal.worlds.simulated.toy import ToyTrainer, toy_layout

TOKEN = "let me in"  # noqa: S105 (a simulated token)
EVENT_BUDGET = 400_000
HEAL_S = 240.0
ROUNDS_AFTER_HEALING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seed: int
    fingerprint: str
    rounds: int
    events: int
    virtual_s: float
    crashes: int
    cpu_s: float


def run_seed(seed: int) -> Outcome:
    """Run one seed to its end. Raises `Foul` (or whatever broke)."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    began = time.process_time()
    scenario = draw_scenario(seed)
    loop = SimLoop(seed, event_budget=EVENT_BUDGET)
    chaos = Chaos(loop, scenario)
    try:
        loop.run(chaos.play())
    except BaseExceptionGroup as group:
        raise _first(group) from group
    if loop.failures:
        failure = loop.failures[0]
        raise Foul(f"unhandled: {failure.get('exception') or failure}")
    return Outcome(
        seed=seed,
        fingerprint=loop.fingerprint(),
        rounds=len(chaos.referee.rounds_sealed),
        events=loop.events,
        virtual_s=loop.time(),
        crashes=chaos.crashes,
        cpu_s=time.process_time() - began,
    )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


class WatchedLog(FileLogStore):
    """The coordinator's log store, with the referee looking on."""

    def __init__(self, host: SimHost, referee: Referee) -> None:
        super().__init__(host.disk, host.reached)
        self._referee = referee

    def append(self, run: RunId, position: int, entry: bytes) -> None:
        super().append(run, position, entry)
        self._referee.appended(position, entry)


@dataclass(slots=True)
class Place:
    """A machine with its disk, through all its incarnations."""

    machine: Machine
    identity: Identity
    disk: SimDisk = field(default_factory=SimDisk)
    incarnation: int = 0
    host: SimHost | None = None
    service: CoordinatorService | NodeService | None = None
    task: asyncio.Task[None] | None = None
    wanted: bool = True
    """False once it is told to stay away."""


class Chaos:
    def __init__(self, loop: SimLoop, scenario: Scenario) -> None:
        self.loop = loop
        self.scenario = scenario
        self.network = SimNetwork(loop)
        self.crashes = 0
        self._rng = loop.rng
        self._calm = False
        self._wiped = 0
        self.run = RunId(f"{scenario.seed:032x}")
        identities = {m.name: _identity(scenario.seed, m.name) for m in self._machines()}
        self.places = {m.name: Place(m, identities[m.name]) for m in self._machines()}
        self.referee = Referee({name: identity.node for name, identity in identities.items()})
        self.network.tap = self._tap

    def _machines(self) -> Iterator[Machine]:
        yield self.scenario.coordinator
        yield from self.scenario.nodes

    def _tap(self, sender: str, receiver: str, frame: bytes) -> None:
        self.referee.frame(sender, receiver, frame)

    async def play(self) -> None:
        """Found the run, start everyone, make trouble, heal, and demand progress."""
        self._found()
        self._start(self.places["coordinator"])
        late = "late" in self.scenario.troubles
        for number, place in enumerate(self._nodes()):
            if late and number % 2:
                self._after(self._rng.uniform(0, self.scenario.chaos_s), place)
            else:
                self._start(place)
        await self._trouble()
        await self._heal()
        await self._demand_progress()
        self._check_end()

    def _nodes(self) -> list[Place]:
        return [self.places[machine.name] for machine in self.scenario.nodes]

    # --- starting and stopping machines --------------------------------------------------------------------

    def _found(self) -> None:
        """Put a genesis entry, its blobs and a join token on the coordinator's disk."""
        place = self.places["coordinator"]
        blobs = BlobStore(SubDisk(place.disk, f"runs/{self.run}"), lambda point: None)
        recipe = self.scenario.recipe
        manifest = _digits(blobs) if self.scenario.torch else _toy_manifest(blobs)
        trainer = self._make_trainer_from(manifest, blobs.get)
        state = initial_state(trainer.layout, trainer.params(), recipe.strategy.fold_rules().outer.slots)
        snapshot = encode_state(state)
        genesis = Genesis(
            coordinator=place.identity.public,
            recipe=recipe.model_dump_json(),
            manifest=manifest,
            layout=trainer.layout,
            state=state_hash(state),
            snapshot=blobs.put(snapshot),
            snapshot_bytes=len(snapshot),
            arithmetic=ARITHMETIC,
        )
        link = make_link(place.identity, self.run, NO_HEAD, 1, 1_800_000_000_000, genesis)
        store = FileLogStore(place.disk, lambda point: None)
        store.append(self.run, 0, link.encoded)
        token = JoinToken(sha256=token_hash(TOKEN))
        store.keep(self.run, f"{TOKEN_PREFIX}0", msgspec.msgpack.encode(token))
        self.referee.appended(0, link.encoded)

    def _make_trainer_from(self, manifest: Manifest, read: object) -> Trainer:
        recipe = self.scenario.recipe
        fragments = recipe.strategy.schedule.fragments
        if not self.scenario.torch:
            return ToyTrainer(toy_layout(self.scenario.size, fragments), recipe.inner.batch_size)
        assert isinstance(recipe.inner, AdamWSpec)
        dataset = open_dataset(manifest, read)  # type: ignore[arg-type]
        return TorchTrainer(
            recipe.model,
            recipe.inner,
            manifest,
            dataset,
            recipe.seed,
            torch.device("cpu"),
            fragments=fragments,
        )

    def _start(self, place: Place) -> None:
        machine = place.machine
        place.incarnation += 1
        host = SimHost(
            self.loop,
            self.network,
            machine.name,
            place.incarnation,
            place.disk,
            node=place.identity.node,
            link=machine.link,
            speed=machine.speed,
            inbound=machine.inbound,
            skew_s=machine.skew_s,
            rate=machine.rate,
        )
        host.on_point = lambda point: self._dies_at(host, point)
        place.host = host
        self.loop.trace("start", machine.name)
        if machine.name == "coordinator":
            store = WatchedLog(host, self.referee)
            self.referee.restarted(list(store.read(self.run)), set(store.kept(self.run, CLAIM_PREFIX)))
            place.service = CoordinatorService(host, place.identity, store)
            work = self._live(place, place.service.serve())
        else:
            place.service = self._node_service(place, host)
            work = self._live(place, place.service.run())
        place.task = self.loop.spawn(host.owner, work, machine.name)

    def _node_service(self, place: Place, host: SimHost) -> NodeService:
        invitation = Invitation(
            coordinator=self.places["coordinator"].identity.node,
            addresses=("coordinator",),
            run=self.run,
            token=TOKEN,
            name=place.machine.name,
        )
        options = NodeOptions(step_seconds=self.scenario.step_s, give_up_s=1e9)
        return NodeService(
            host,
            place.identity,
            invitation,
            lambda recipe, genesis, read: self._make_trainer_from(genesis.manifest, read),
            options,
        )

    async def _live(self, place: Place, work: object) -> None:
        """One incarnation's life. What it dies of is recorded, unless it was killed."""
        try:
            await work  # type: ignore[misc]
        except HostDied:
            self._fallen(place)
        except BaseExceptionGroup as group:
            fatal, other = group.split(HostDied)
            if other is not None:
                raise
            if fatal is not None:
                self._fallen(place)

    def _fallen(self, place: Place) -> None:
        """It died at a named point; after that nothing of it runs, so nothing more is to be done."""

    def _dies_at(self, host: SimHost, point: str) -> bool:
        if self._calm or self._rng.random() >= self.scenario.point_chance:
            return False
        self.loop.trace("dies", host.name, point)
        self.crashes += 1
        self._after(self._rng.uniform(0.2, 5), self.places[host.name])
        return True

    def _crash(self, place: Place) -> None:
        if place.host is not None and place.host.alive:
            self.loop.trace("crash", place.machine.name)
            self.crashes += 1
            place.host.die()
            self._after(self._rng.uniform(0.2, 6), place)

    def _wipe(self, place: Place) -> None:
        """A machine burns down with its disk; somebody new joins in its stead."""
        if place.host is not None and place.host.alive and self._wiped < len(self._nodes()) - 1:
            self._wiped += 1
            self._crash(place)
            place.disk = SimDisk()
            place.identity = _identity(self.scenario.seed, f"{place.machine.name}+{self._wiped}")
            self.referee.nodes[place.machine.name] = place.identity.node

    def _after(self, delay_s: float, place: Place) -> None:
        """Start a machine (again) in a while."""

        def begin() -> None:
            if place.wanted and (place.host is None or not place.host.alive):
                self._start(place)

        self.loop.call_later(delay_s, begin)

    # --- trouble, healing, progress ------------------------------------------------------------------------

    async def _trouble(self) -> None:
        scenario = self.scenario
        self.network.faults = Faults(
            loss=scenario.loss,
            duplicate=scenario.duplicate,
            reorder=scenario.reorder,
            corrupt=scenario.corrupt,
        )
        end = self.loop.time() + scenario.chaos_s
        while self.loop.time() < end:
            await asyncio.sleep(
                min(self._rng.expovariate(1 / scenario.trouble_every_s), end - self.loop.time() + 0.01)
            )
            await self._one_trouble(self._rng.choice(scenario.troubles))

    async def _one_trouble(self, kind: str) -> None:
        rng, faults = self._rng, self.network.faults
        place = rng.choice(self._nodes())
        self.loop.trace("trouble", kind, place.machine.name)
        match kind:
            case "crash":
                self._crash(place)
            case "coordinator":
                self._crash(self.places["coordinator"])
            case "hang":
                victim = rng.choice(list(self.places.values()))
                self._hang(victim, rng.uniform(0.5, 8))
            case "cut":
                pair = tuple(rng.sample(list(self.places), 2))
                faults.cut.add((pair[0], pair[1]))
                self.loop.call_later(rng.uniform(0.5, 8), lambda: faults.cut.discard((pair[0], pair[1])))
            case "clog":
                name = rng.choice(list(self.places))
                faults.clogged[name] = rng.uniform(0.2, 3)
                self.loop.call_later(rng.uniform(0.5, 6), lambda: faults.clogged.pop(name, None))
            case "leave":
                await self._leave(place)
            case "wipe":
                self._wipe(place)

    def _hang(self, place: Place, seconds: float) -> None:
        host = place.host
        if host is None or not host.alive or host.paused:
            return
        host.paused = True
        self.loop.pause(host.owner)
        self.loop.call_later(seconds, lambda: self._wake(host))

    def _wake(self, host: SimHost) -> None:
        host.paused = False
        self.loop.resume(host.owner)

    async def _leave(self, place: Place) -> None:
        """A node leaves on purpose, and comes back some time later."""
        host, service, task = place.host, place.service, place.task
        if host is None or not host.alive or host.paused or not isinstance(service, NodeService):
            return
        if task is None or task.done():
            return
        self.loop.spawn(host.owner, service.leave("enough for today"), "leave")

        def gone() -> None:
            host.alive = False
            self.network.drop_host(host)
            self.loop.kill(host.owner)
            self._after(self._rng.uniform(0.1, 5), place)

        task.add_done_callback(lambda _: gone())

    async def _heal(self) -> None:
        """No more faults; everyone is back."""
        self._calm = True
        self.network.faults.loss = self.network.faults.duplicate = 0.0
        self.network.faults.reorder = self.network.faults.corrupt = 0.0
        self.network.faults.cut.clear()
        self.network.faults.clogged.clear()
        for place in self.places.values():
            if place.host is not None and place.host.paused:
                self._wake(place.host)
            if place.host is None or not place.host.alive:
                self._start(place)
        self.loop.trace("healed")

    async def _demand_progress(self) -> None:
        """Some more rounds, and then a moment at which everyone is on the same state."""
        goal = len(self.referee.rounds_sealed) + ROUNDS_AFTER_HEALING
        deadline = self.loop.time() + HEAL_S
        while len(self.referee.rounds_sealed) < goal or not self._all_caught_up():
            if self.loop.time() > deadline:
                raise Foul(f"no progress after healing: {self._situation(goal)}")
            self._raise_failures()
            await asyncio.sleep(0.25)

    def _all_caught_up(self) -> bool:
        """True if every node has been seen with the state of one of the last seals, all of them equal."""
        at = {place.service.machine.at for place in self._nodes() if isinstance(place.service, NodeService)}
        recent = {step.position for step in self.referee.view.path[-2:]} | {0}
        return at <= recent and not self.referee.unsettled() - self._pending()

    def _pending(self) -> set[tuple[NodeId, int]]:
        """Claims that the open round holds: they will be settled by its seal."""
        newest: dict[NodeId, int] = {}
        for node, sequence in self.referee.acknowledged:
            newest[node] = max(sequence, newest.get(node, -1))
        return set(newest.items())

    def _raise_failures(self) -> None:
        for place in self.places.values():
            if place.task is not None and place.task.done() and not place.task.cancelled():
                error = place.task.exception()
                if error is not None:
                    raise error

    def _situation(self, goal: int) -> str:
        service = self.places["coordinator"].service
        waiting = ""
        if isinstance(service, CoordinatorService) and self.run in service.runs:
            waiting = service.runs[self.run].machine.waiting_for
        doing = {
            place.machine.name: (place.service.machine.at, place.service.machine.doing)
            for place in self._nodes()
            if isinstance(place.service, NodeService)
        }
        sealed = len(self.referee.rounds_sealed)
        return f"{sealed} of {goal} rounds; coordinator waits for {waiting}; nodes {doing}; at {self.referee.view.at}"

    def _check_end(self) -> None:
        """Hash-equal states, and every saved state still there."""
        states: dict[int, str] = {}
        for place in self._nodes():
            service = place.service
            if not isinstance(service, NodeService) or service.state is None:
                continue
            hashed = state_hash(service.state)
            at = service.machine.at
            if states.setdefault(at, hashed) != hashed:
                raise Foul(f"{place.machine.name} has another state at {at}")
            known = {state for (position, _), state in self.referee.states.items() if position == at}
            if known and hashed not in known:
                raise Foul(f"{place.machine.name} holds a state at {at} that it did not attest")
        self._check_snapshot()
        self.loop.trace("end", self.referee.view.head.hash, sorted(states.items()))

    def _check_snapshot(self) -> None:
        saved = self.referee.view.best_start()
        disk = SubDisk(self.places["coordinator"].disk, f"runs/{self.run}")
        try:
            BlobStore(disk, lambda point: None).get(saved.blob)
        except (FileNotFoundError, ShoalError) as error:
            raise Foul(f"the saved state at {saved.at} is gone: {error}") from error


@lru_cache(maxsize=4096)
def _identity(seed: int, name: str) -> Identity:
    return Identity(f"{name}/{seed}".encode().ljust(32, b"."))


def _toy_manifest(blobs: BlobStore) -> Manifest:
    data = bytes(range(256)) * 4
    shard = Shard(blob=blobs.put(data), items=4096)
    return Manifest(
        kind="tokens", dtype="uint8", train=(shard,), validation=(shard,), context=1, vocab_size=256
    )


@lru_cache(maxsize=1)
def _digits_blobs() -> tuple[Manifest, dict[BlobId, bytes]]:
    kept: dict[BlobId, bytes] = {}

    def put(data: bytes) -> BlobId:
        blob = chunk_list(data).blob
        kept[blob] = data
        return blob

    return prepare(draw_scenario(0).recipe.data, put), kept


def _digits(blobs: BlobStore) -> Manifest:
    manifest, kept = _digits_blobs()
    for data in kept.values():
        blobs.put(data)
    return manifest
