"""The coordinator's service: channels in, machine, effects out, for every run it has.

In flow control channels and blob requests; out flow log entries and messages. Invariant: one task takes one
event at a time and carries out its effects in order, so a message never overtakes the entry it rests on;
a node that reads too slowly is cut off, never waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field

import msgspec

from shoal.base.disk import SubDisk
from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Channel, Host, Peer
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.coordinator.accused import accused, load_evidence
from shoal.coordinator.admission import TOKEN_PREFIX, JoinToken, clean_name, judge, node_of, not_served
from shoal.coordinator.claims import PREFIX as CLAIM_PREFIX
from shoal.coordinator.events import (
    Append,
    Archive,
    Arrived,
    BlobFetched,
    Dismiss,
    Drop,
    Effect,
    Event,
    FetchBlob,
    Instant,
    Keep,
    Lost,
    Prune,
    Said,
    Send,
    SendEntries,
    Tell,
    Ticked,
)
from shoal.coordinator.machine import CoordinatorMachine
from shoal.replica.blobs import BlobStore
from shoal.replica.serving import ResourcesByRun, RunResources
from shoal.replica.state import decode_state, state_hash
from shoal.replica.swarm import Swarm
from shoal.runlog.chain import Equivocation
from shoal.runlog.evidence import Evidence
from shoal.runlog.statements import most_bytes
from shoal.runlog.view import verify_log
from shoal.strategy.recipe import recipe_in_log
from shoal.wire.identity import Identity
from shoal.wire.messages import (
    PROTOCOL,
    Challenge,
    Entries,
    Hello,
    PleasePush,
    Refuse,
    Welcome,
    decode,
    encode,
)

log = logging.getLogger(__name__)

HANDSHAKE_S = 15.0
REQUEST_TIMEOUT_S = 20.0
PAGE_ENTRIES, PAGE_BYTES = 256, 1 << 20
MAX_QUEUED, MAX_QUEUED_BYTES = 1024, 16 << 20


@dataclass(slots=True)
class Connection:
    """A seated node's channel, with a bounded queue in front of it."""

    channel: Channel
    queue: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(MAX_QUEUED))
    queued_bytes: int = 0

    def put(self, frame: bytes) -> bool:
        """Queue a frame; False if the node reads so slowly that it must be cut off."""
        if self.queue.full() or self.queued_bytes > MAX_QUEUED_BYTES:
            return False
        self.queued_bytes += len(frame)
        self.queue.put_nowait(frame)
        return True

    async def write(self) -> None:
        """Send what is queued until the channel breaks."""
        with contextlib.suppress(ChannelClosed):
            while True:
                frame = await self.queue.get()
                await self.channel.send(frame)
                self.queued_bytes -= len(frame)


@dataclass(slots=True)
class Run:
    """One run in service."""

    machine: CoordinatorMachine
    blobs: BlobStore
    swarm: Swarm
    tokens: tuple[JoinToken, ...]
    evidence: Evidence
    written: int
    """How many entries of its log are durable: the view is ahead of it while one is being written."""
    connections: dict[NodeId, Connection] = field(default_factory=dict)
    fetching: set[str] = field(default_factory=set)
    archiving: asyncio.Lock = field(default_factory=asyncio.Lock)


class CoordinatorService:
    """Start it with `serve()` in a task; `ready` is set once it listens."""

    def __init__(self, host: Host, identity: Identity, store: LogStore) -> None:
        self.host = host
        self.identity = identity
        self.store = store
        self.runs: dict[RunId, Run] = {}
        self.broken: dict[RunId, ShoalError] = {}
        """Runs that are not served, with the reason: their log does not hold, or there are two."""
        self.ready = asyncio.Event()
        self.changed = asyncio.Event()
        """Set after every event that changed something; for those who show it."""
        self.address = ""
        self._resources = ResourcesByRun()
        self._blob_address = ""
        self._events: asyncio.Queue[tuple[RunId, Event]] = asyncio.Queue(MAX_QUEUED)
        self._tasks: asyncio.TaskGroup | None = None

    async def serve(self) -> None:
        """Run until cancelled. Raises `ShoalError` if it cannot start or a log does not hold."""
        self._blob_address = await self.host.offer(self._resources)
        await self._open_runs()
        self.address = await self.host.listen(self._serve_channel)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._tick(), name="coordinator ticks")
            self.ready.set()
            while True:
                run, event = await self._events.get()
                if run in self.runs:
                    await self._take(self.runs[run], event)

    async def _open_runs(self) -> None:
        """Take every run into service. One that cannot be served does not keep the others from it."""
        runs = await self.host.work(self.store.runs)
        for run in runs:
            try:
                await self.open_run(run)
            except ShoalError as error:
                if len(runs) == 1:
                    raise
                self.broken[run] = error

    async def open_run(self, run: RunId) -> Run:
        """Take a run from the store into service, having checked its whole log."""
        entries = await self.host.work(lambda: list(self.store.read(run)))
        view, finding = verify_log(entries, run)
        if finding is not None or view.genesis is None:
            what = f"entry {finding.position} {finding.what}" if finding else "the log is empty"
            raise ShoalError(
                "SH-LOG-01",
                f"run {run[:12]}: {what}",
                "restore the store from a copy; `shoal log verify` shows where it breaks",
            )
        if view.genesis.coordinator != self.identity.public:
            raise ShoalError(
                "SH-KEY-02",
                f"run {run[:12]} was founded under another coordinator's key",
                "start the coordinator with the home (and key file) that founded the run",
            )
        kept = await self.host.work(lambda: self.store.kept(run, CLAIM_PREFIX))
        tokens = await self.host.work(lambda: self.store.kept(run, TOKEN_PREFIX))
        evidence = await self.host.work(lambda: load_evidence(self.store, run, self.identity.public))
        blobs = self.blob_store(run)
        machine = CoordinatorMachine(
            identity=self.identity,
            view=view,
            recipe=recipe_in_log(view.genesis.recipe),
            kept=kept,
            own_address=self._blob_address,
            instant=self._instant(),
        )
        self.runs[run] = Run(
            machine=machine,
            blobs=blobs,
            swarm=Swarm(self.host, blobs, run, timeout_s=REQUEST_TIMEOUT_S),
            tokens=tuple(msgspec.msgpack.decode(value, type=JoinToken) for value in tokens.values()),
            evidence=evidence,
            written=len(entries),
        )
        self._resources.runs[run] = RunResources(
            run=run,
            identity=self.identity,
            blobs=blobs,
            read_entry=lambda position: next(self.store.read(run, position, position + 1), None),
            is_member=lambda node: node in view.members,
            evidence=evidence,
            quota_bytes=machine.recipe.storage.quota_bytes,
            max_blob_bytes=most_bytes(view.genesis),
        )
        return self.runs[run]

    async def bring(
        self, run: RunId, blob: BlobId, size_bytes: int | None, holders: tuple[NodeId, ...]
    ) -> bool:
        """Have a run's blob here, if somebody gives it now."""
        served = self.runs[run]
        return await served.swarm.fetch(blob, size_bytes, self._peers(served, holders)) is not None

    def blob_store(self, run: RunId) -> BlobStore:
        return BlobStore(SubDisk(self.host.disk, f"runs/{run}"), self.host.reached)

    async def post(self, run: RunId, event: Event) -> None:
        """Hand an event to a run, after those already waiting."""
        await self._events.put((run, event))

    # --- channels ----------------------------------------------------------------------------------------

    async def _serve_channel(self, channel: Channel) -> None:
        """One node's connection, from challenge to loss."""
        admitted = await self._admit(channel)
        if admitted is None:
            await channel.close()
            return
        channel.admit()
        run_id, hello = admitted
        node, run = node_of(hello), self.runs[run_id]
        connection = Connection(channel)
        old = run.connections.get(node)
        run.connections[node] = connection
        if old is not None:
            await old.channel.close()
        arrived = Arrived(
            node=node,
            public=hello.public,
            name=clean_name(hello.name),
            address=hello.address[:200],
            length=max(0, hello.length),
        )
        await self.post(run_id, arrived)
        writer = asyncio.get_running_loop().create_task(connection.write(), name=f"write to {node[:8]}")
        try:
            while True:
                await self.post(run_id, Said(node, decode(await channel.recv())))
        except (ChannelClosed, ShoalError):
            pass
        writer.cancel()
        await channel.close()
        if run.connections.get(node) is connection:
            del run.connections[node]
            await self.post(run_id, Lost(node))

    async def _admit(self, channel: Channel) -> tuple[RunId, Hello] | None:
        nonce = self.host.random.randbytes(32)
        challenge = Challenge(protocol=PROTOCOL, coordinator=self.identity.node, nonce=nonce)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await channel.send(encode(challenge))
                hello = decode(await channel.recv())
                if not isinstance(hello, Hello):
                    return None
                refuse = self._judge(hello, nonce)
                if refuse is not None or hello.probe:
                    await channel.send(encode(refuse or self._welcome(hello.run)))
                    return None
        except ShoalError as error:
            with contextlib.suppress(ChannelClosed):
                refuse = Refuse(code=error.code, cause=error.cause, next_step=error.next_step)
                await channel.send(encode(refuse))
            return None
        except (ChannelClosed, TimeoutError):
            return None
        return hello.run, hello

    def _welcome(self, run: RunId) -> Welcome:
        machine = self.runs[run].machine
        heartbeat_s = machine.recipe.membership.heartbeat_s
        return Welcome(run=run, heartbeat_s=heartbeat_s, length=machine.view.length)

    def _judge(self, hello: Hello, nonce: bytes) -> Refuse | None:
        run = self.runs.get(hello.run)
        if run is None:
            return not_served(hello.run, self.broken.get(hello.run))
        return judge(
            hello,
            nonce=nonce,
            run=hello.run,
            coordinator=self.identity.node,
            tokens=run.tokens,
            is_member=node_of(hello) in run.machine.view.members,
            wall_ms=self.host.clock.wall_ms(),
        )

    # --- events and effects ------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await self.host.clock.sleep(min([0.5, *(run.machine.tick_s for run in self.runs.values())]))
            for run in list(self.runs):
                await self.post(run, Ticked())

    def _instant(self) -> Instant:
        return Instant(self.host.clock.now(), self.host.clock.wall_ms())

    async def _take(self, run: Run, event: Event) -> None:
        for effect in run.machine.step(self._instant(), event):
            if run.evidence.proof is None:
                await self._carry_out(run, effect)
        if run.evidence.proof is not None:
            self._give_up(run, run.evidence.proof)
        self.changed.set()

    def _give_up(self, run: Run, proof: Equivocation) -> None:
        """Somebody writes another log of this run under this key: append nothing more, and say so to everyone."""
        name, error = run.machine.run, accused(run.machine.run, proof)
        log.error("run_not_served", extra={"run": name[:12], "code": error.code, "cause": error.cause})
        self.broken[name] = error
        del self.runs[name]
        for node, connection in run.connections.items():
            self._spawn(connection.channel.close(), f"cut off {node[:8]}")

    async def _carry_out(self, run: Run, effect: Effect) -> None:
        name = run.machine.run
        match effect:
            case Append():
                self.host.reached("coordinator.before-append")
                self.host.reached(f"coordinator.before-{effect.kind}")
                await self.host.work(lambda: self.store.append(name, effect.position, effect.encoded))
                run.written = effect.position + 1
                self.host.reached("coordinator.after-append")
                self.host.reached(f"coordinator.after-{effect.kind}")
            case Keep():
                await self.host.work(lambda: self.store.keep(name, effect.key, effect.value))
                self.host.reached("coordinator.after-keep")
            case Drop():
                await self.host.work(lambda: self.store.drop(name, effect.key))
            case Send():
                self._send(run, effect.node, encode(effect.message))
            case Tell():
                frame = encode(effect.message)
                for node in list(run.connections):
                    self._send(run, node, frame)
            case SendEntries():
                await self._send_entries(run, effect)
            case Dismiss():
                self._send(run, effect.node, encode(effect.refuse))
            case FetchBlob():
                self._fetch(run, effect)
            case Prune():
                await self._prune(run)
            case Archive():
                self._spawn(self._archive(run, effect), f"archive {effect.position}")

    def _send(self, run: Run, node: NodeId, frame: bytes) -> None:
        connection = run.connections.get(node)
        if connection is not None and not connection.put(frame):
            # A node that does not read would make this queue grow for ever: it may reconnect and catch up.
            run.connections.pop(node)
            self._spawn(connection.channel.close(), f"cut off {node[:8]}")
            self._spawn(self.post(run.machine.run, Lost(node)), f"lost {node[:8]}")

    async def _send_entries(self, run: Run, effect: SendEntries) -> None:
        connection = run.connections.get(effect.node)
        if connection is None or connection.queued_bytes > PAGE_BYTES:
            return  # It has enough to read, and asks again for what is missing.
        name = run.machine.run
        stop = effect.start + PAGE_ENTRIES
        entries = await self.host.work(lambda: list(self.store.read(name, effect.start, stop)))
        page: list[bytes] = []
        for entry in entries:
            if page and sum(map(len, page)) + len(entry) > PAGE_BYTES:
                break
            page.append(entry)
        if page:
            self._send(run, effect.node, encode(Entries(items=tuple(page))))

    def _fetch(self, run: Run, effect: FetchBlob) -> None:
        if effect.blob not in run.fetching:
            run.fetching.add(effect.blob)
            self._spawn(self._fetch_blob(run, effect), f"fetch {effect.blob[:8]}")

    async def _fetch_blob(self, run: Run, effect: FetchBlob) -> None:
        seats = run.machine.seats.by_node
        await run.swarm.fetch(effect.blob, effect.size_bytes, self._peers(run, effect.holders))
        hidden = [n for n in effect.holders if n in seats and not seats[n].address]
        missing = not run.blobs.has(effect.blob)
        if missing and hidden:
            self._send(run, hidden[0], encode(PleasePush(blob=effect.blob)))
            await self._arrival(run, effect)
        run.fetching.discard(effect.blob)
        size = run.blobs.size(effect.blob)
        state = (
            await self.host.work(lambda: _state_in(run, effect.blob)) if effect.is_state and size else None
        )
        pushed = missing and size is not None
        fetched = BlobFetched(at=effect.at, blob=effect.blob, size_bytes=size, state=state, pushed=pushed)
        await self.post(run.machine.run, fetched)

    async def _archive(self, run: Run, effect: Archive) -> None:
        """Keep a copy of every sealed update, one seal after the other; what cannot be had now is let go."""
        async with run.archiving:
            for blob, size_bytes, holders in effect.updates:
                await run.swarm.fetch(blob, size_bytes, self._peers(run, holders))

    async def _prune(self, run: Run) -> None:
        keep, round_number = run.machine.needed_blobs(), run.machine.view.round
        spare_bytes = run.machine.recipe.storage.keep_bytes
        await self.host.work(lambda: run.blobs.prune(keep, round_number, spare_bytes=spare_bytes))

    def _peers(self, run: Run, holders: tuple[NodeId, ...]) -> list[Peer]:
        """Who can be asked for a blob: those that hold it first."""
        seats = run.machine.seats.by_node
        order = [*holders, *(node for node in seats if node not in holders)]
        peers = [Peer(node=node, address=seats[node].address) for node in order if node in seats]
        return [peer for peer in peers if peer.address]

    async def _arrival(self, run: Run, effect: FetchBlob) -> None:
        """Wait until a pushed blob is here, or has had time enough."""
        deadline = self.host.clock.now() + REQUEST_TIMEOUT_S
        while not run.blobs.has(effect.blob) and self.host.clock.now() < deadline:
            await self.host.clock.sleep(0.2)

    def _spawn(self, work: object, name: str) -> None:
        assert self._tasks is not None and asyncio.iscoroutine(work)
        self._tasks.create_task(work, name=name)


def _state_in(run: Run, blob: BlobId) -> str | None:
    """The hash of the state in a snapshot, or None if there is none in it."""
    genesis = run.machine.view.genesis
    try:
        return state_hash(decode_state(run.blobs.get(blob), genesis.layout)) if genesis else None
    except (ShoalError, FileNotFoundError):
        return None
