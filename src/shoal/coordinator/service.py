"""The coordinator's service: channels in, machine, effects out, for every run it has.

In flow control channels and blob requests; out flow log entries and messages. Invariant: one task takes one
event at a time and carries out its effects in order, so a message never overtakes the entry it rests on;
a node that reads too slowly is cut off, never waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from shoal.base.disk import SubDisk
from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Channel, Host, Peer
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.checkpoint.keeping import retain
from shoal.coordinator.accused import accused, load_evidence
from shoal.coordinator.admission import (
    TOKEN_PREFIX,
    JoinToken,
    clean_name,
    judge_caller,
    node_of,
    not_served,
)
from shoal.coordinator.changing import (
    CHANGES,
    PAUSED,
    WISH_PREFIX,
    Change,
    Changed,
    changed_recipe,
    resting,
)
from shoal.coordinator.claims import PREFIX as CLAIM_PREFIX
from shoal.coordinator.contest import Contest
from shoal.coordinator.copies import Copies, lasting_blobs
from shoal.coordinator.doorkeeping import Allowance, Doorkeeper, Stake
from shoal.coordinator.electing import Elections, Ground
from shoal.coordinator.events import (
    Append,
    Archive,
    Arrived,
    BlobFetched,
    Coordinators,
    Dismiss,
    Drop,
    Effect,
    EnterCredit,
    Event,
    FetchBlob,
    Instant,
    Keep,
    Lost,
    Prune,
    RevokeAsked,
    Said,
    Send,
    SendEntries,
    SendReceipt,
    Tell,
    Ticked,
)
from shoal.coordinator.keyring import (
    leads_to,
    not_a_member,
    own_keys,
    read_keys,
    revocation_in,
    revoked,
)
from shoal.coordinator.leading import Lead
from shoal.coordinator.machine import CoordinatorMachine
from shoal.coordinator.paying import Payroll, open_books
from shoal.replica.blobs import BlobStore
from shoal.replica.serving import ResourcesByRun, RunResources
from shoal.replica.state import decode_state, state_hash
from shoal.replica.swarm import Swarm
from shoal.runlog.chain import Equivocation
from shoal.runlog.evidence import Evidence
from shoal.runlog.keys import Revocation
from shoal.runlog.statements import most_bytes
from shoal.runlog.view import RunView, verify_log
from shoal.strategy.recipe import Recipe, recipe_in_log
from shoal.wire.ballots import Follow, Stored, Vote
from shoal.wire.identity import Identity
from shoal.wire.messages import (
    Challenge,
    Entries,
    Hello,
    Message,
    Paid,
    PeerAddress,
    Peers,
    PleasePush,
    Refuse,
    Welcome,
    decode,
    encode,
)
from shoal.wire.signed import parse
from shoal.wire.versions import HERE, Speaking, Speaks, stamped

log = logging.getLogger(__name__)

HANDSHAKE_S = 15.0
DISMISS_S = 1.0
REQUEST_TIMEOUT_S = 20.0
PAGE_ENTRIES, PAGE_BYTES = 256, 1 << 20
MAX_QUEUED, MAX_QUEUED_BYTES = 1024, 16 << 20
MEND_EVERY_S = 5.0
NOWHERE = -1
"""The position of a blob that no seal asks for."""


@dataclass(slots=True)
class Connection:
    """A seated node's channel, with a bounded queue in front of it."""

    channel: Channel
    arrived: Arrived
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
    payroll: Payroll
    written: int
    """How many entries of its log are durable: the view is ahead of it while one is being written."""
    paused: str | None = None
    """Why nobody is given work, while the organiser wants it so."""
    short: bool = False
    """Its budget cannot pay anybody now, and that was said."""
    connections: dict[NodeId, Connection] = field(default_factory=dict)
    fetching: set[str] = field(default_factory=set)
    archiving: asyncio.Lock = field(default_factory=asyncio.Lock)


class CoordinatorService:
    """Start it with `serve()` in a task; `ready` is set once it listens."""

    def __init__(
        self,
        host: Host,
        identity: Identity,
        store: LogStore,
        lead: Lead | None = None,
        stake: Stake | None = None,
        standby_of: tuple[str, ...] = (),
        speaks: Speaks = HERE,
    ) -> None:
        self.host = host
        self.identity = identity
        self.store = store
        self.lead = lead
        """Where the store is shared with other coordinators: this one serves runs while it has the lead."""
        self._doorkeeper = Doorkeeper(host, store, identity.node, stake, speaks)
        self._speaks = speaks
        self.runs: dict[RunId, Run] = {}
        self.broken: dict[RunId, ShoalError] = {}
        """Runs that are not served, with the reason: their log does not hold, or there are two."""
        self.ready = asyncio.Event()
        self.changed = asyncio.Event()
        """Set after every event that changed something; for those who show it."""
        self.address = ""
        self._resources = ResourcesByRun()
        self._blob_address = ""
        self._events: asyncio.Queue[tuple[RunId, Event | Changed]] = asyncio.Queue(MAX_QUEUED)
        self._tasks: asyncio.TaskGroup | None = None
        self._mending = False
        self._copies = Copies(
            host, store, self.blob_store, self._other, self._serve_copies, self._standing_by
        )
        self.elections = Elections(
            Ground(
                host=host,
                identity=identity,
                store=store,
                spawn=self._spawn,
                serve=self._serve_won,
                serve_over=self._serve_over,
                drop=self._drop_lost,
                callers=lambda run: self.runs[run].connections if run in self.runs else {},
                close=self._hang_up,
                copy=self._copies.follow,
            ),
            standby_of,
        )
        """Of runs that a majority keeps, for which each coordinator has a store of its own."""

    async def serve(self) -> None:
        """Run until cancelled. Raises `ShoalError` if it cannot start or a log does not hold."""
        self._blob_address = await self.host.offer(self._resources)
        self.address = await self.host.listen(self._serve_channel)
        if self.lead is not None:
            copies = Copies(self.host, self.store, self.blob_store, self._other, self._serve_copies)
            await self.lead.win(self.host, self.address, self._blob_address, copies.follow)
        await self._open_runs()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self.elections.start(self.address, self._blob_address)
            tasks.create_task(self._tick(), name="coordinator ticks")
            if self.lead is not None:
                tasks.create_task(self.lead.hold(self.host, self._tell_coordinators), name="hold the lead")
                tasks.create_task(self._mend(), name="bring what the last leader had")
            self.ready.set()
            await self._tell_coordinators()
            while True:
                run, event = await self._events.get()
                if run in self.runs:
                    await self._take_unless_deposed(self.runs[run], event)

    async def _open_runs(self) -> None:
        """Take every run into service. One that cannot be served does not keep the others from it."""
        runs = await self.host.work(self.store.runs)
        for run in runs:
            try:
                await self._open_or_contend(run)
            except ShoalError as error:
                if len(runs) == 1:
                    raise
                self.broken[run] = error

    async def open_run(self, run: RunId) -> Run:
        """Take a run from the store into service, having checked its whole log; where a majority keeps it, once this
        coordinator leads."""
        contest = await self._open_or_contend(run)
        if contest is not None:
            await self.elections.lead(contest)
        return self.runs[run]

    async def _open_or_contend(self, run: RunId) -> Contest | None:
        entries = await self.host.work(lambda: list(self.store.read(run)))
        contest = self.elections.add(run, entries)
        if contest is None:
            await self._open(run, entries)
        elif self.identity.first is not self.identity:
            raise ShoalError(
                "SH-LEAD-02",
                f"run {run[:12]} is kept by a majority, whose voters know this coordinator by its first key only",
                "serve it from a home whose key was not replaced",
            )
        return contest

    async def _open(self, run: RunId, entries: list[bytes], term: int = 0) -> None:
        books = await self.host.work(
            lambda: open_books(entries, run, self.store, self.identity.first, self.host.reached)
        )
        view, finding = books.crediting.view, books.finding
        if finding is not None or view.genesis is None:
            what = f"entry {finding.position} {finding.what}" if finding else "the log is empty"
            raise ShoalError(
                "SH-LOG-01",
                f"run {run[:12]}: {what}",
                "restore the store from a copy; `shoal log verify` shows where it breaks",
            )
        if not leads_to(view, self.identity):
            raise ShoalError(
                "SH-KEY-02",
                f"run {run[:12]} belongs to a coordinator with another key than this one's",
                "start the coordinator with the home that founded the run, or in which its key was replaced",
            )
        kept = await self.host.work(lambda: self.store.kept(run, CLAIM_PREFIX))
        wishes = await self.host.work(lambda: self.store.kept(run, WISH_PREFIX))
        tokens = await self.host.work(lambda: self.store.kept(run, TOKEN_PREFIX))
        evidence = await self.host.work(lambda: load_evidence(self.store, run, lambda: view.coordinator_keys))
        blobs = self.blob_store(run)
        machine = CoordinatorMachine(
            identity=self.identity,
            crediting=books.crediting,
            recipe=changed_recipe(recipe_in_log(view.genesis.recipe), wishes.get(CHANGES)),
            kept=kept,
            own_address=self._blob_address,
            instant=self._instant(),
            term=term,
        )
        self.runs[run] = Run(
            machine=machine,
            blobs=blobs,
            swarm=Swarm(self.host, blobs, run, timeout_s=REQUEST_TIMEOUT_S),
            tokens=tuple(msgspec.msgpack.decode(value, type=JoinToken) for value in tokens.values()),
            evidence=evidence,
            payroll=await self.host.work(books.catch_up),
            written=len(entries),
            paused=wishes[PAUSED].decode() if PAUSED in wishes else None,
        )
        self._resources.runs[run] = RunResources(
            run=run,
            identity=self.identity,
            blobs=blobs,
            read_entry=self._entry_reader(run),
            is_member=lambda node: node in view.members and not view.banned(node, self.host.clock.wall_ms()),
            evidence=evidence,
            quota_bytes=machine.recipe.storage.quota_bytes,
            max_blob_bytes=most_bytes(view.genesis),
        )

    # --- runs that a majority keeps ------------------------------------------------------------------------

    async def _serve_won(self, contest: Contest) -> None:
        """Serve a run whose lead was won, those first who have waited for it."""
        entries = await self.host.work(lambda: list(self.store.read(contest.run)))
        await self._open(contest.run, entries, contest.ballot.term)
        if not contest.leading:
            self._drop_lost(contest)
            return
        if self.lead is None and not self._mending:
            self._mending = True
            self._spawn(self._mend(), "bring what the last leader had")
        await self.post(contest.run, Coordinators(contest.coordinators))
        while contest.held and contest.run in self.runs:
            node, connection = contest.held.popitem()
            contest.held_at.pop(node)
            if isinstance(connection, Connection):
                await self._seat(self.runs[contest.run], connection)

    async def _serve_over(self, contest: Contest) -> bool:
        """Serve a run that nobody leads and nothing will be added to, for those who look at it; False if it is none."""
        entries = await self.host.work(lambda: list(self.store.read(contest.run)))
        view, _ = await self.host.work(lambda: verify_log(entries, contest.run))
        over = view.stopped is not None and view.best_start().at == view.at
        if over:
            await self._open(contest.run, entries)
        return over

    def _drop_lost(self, contest: Contest) -> None:
        run = self.runs.pop(contest.run, None)
        if run is not None:
            for connection in run.connections.values():
                self._hang_up(connection)
            self._serve_copies(contest.run, run.blobs, run.evidence)
            self.changed.set()

    def _hang_up(self, caller: object) -> None:
        if isinstance(caller, Connection):
            self._spawn(caller.channel.close(), f"send {caller.arrived.node[:8]} elsewhere")

    def _standing_by(self) -> list[RunId]:
        return [run for run, contest in self.elections.contests.items() if not contest.leading]

    def views_of_copies(self) -> list[RunView]:
        """What is known here of runs that another coordinator leads."""
        return self._copies.views()

    async def _take_unless_deposed(self, run: Run, event: Event | Changed) -> None:
        try:
            await self._take(run, event)
        except ShoalError as error:
            if error.code != "SH-LEAD-01" or run.machine.run not in self.elections.contests:
                raise

    # --- what others ask of a run --------------------------------------------------------------------------

    def _entry_reader(self, run: RunId) -> Callable[[int], bytes | None]:
        return lambda position: next(self.store.read(run, position, position + 1), None)

    async def bring(
        self, run: RunId, blob: BlobId, size_bytes: int | None, holders: tuple[NodeId, ...]
    ) -> bool:
        """Have a run's blob here, if somebody gives it now."""
        served = self.runs[run]
        return await served.swarm.fetch(blob, size_bytes, self._peers(served, holders)) is not None

    async def pause(self, run: RunId, reason: str | None) -> None:
        """Give nobody new work from now on, and after restarts too; None to go on. Work that is out still counts."""
        served = self.runs[run]
        if reason is None:
            await self.host.work(lambda: self.store.drop(run, PAUSED))
        else:
            await self.host.work(lambda: self.store.keep(run, PAUSED, reason.encode()))
        served.paused = reason
        served.machine.seats.rest(reason is not None)
        await self.post(run, Ticked())

    async def change(self, run: RunId, changes: dict[str, Change]) -> None:
        """Go on with other values for what a run may change (`changing`), as a restart with them would: its nodes
        connect again. Raises SH-RECIPE-02."""
        served = self.runs[run]
        genesis = served.machine.view.genesis
        assert genesis is not None
        encoded = msgspec.json.encode(changes)
        recipe = changed_recipe(recipe_in_log(genesis.recipe), encoded)
        await self.host.work(lambda: self.store.keep(run, CHANGES, encoded))
        await self.post(run, Changed(recipe))

    async def _restart(self, run: Run, recipe: Recipe) -> None:
        name = run.machine.run
        kept = await self.host.work(lambda: self.store.kept(name, CLAIM_PREFIX))
        run.machine = CoordinatorMachine(
            identity=self.identity,
            crediting=run.machine.crediting,
            recipe=recipe,
            kept=kept,
            own_address=self._blob_address,
            instant=self._instant(),
        )
        for node, connection in run.connections.items():
            self._spawn(connection.channel.close(), f"ask {node[:8]} to come again")
        run.connections.clear()

    def blob_store(self, run: RunId) -> BlobStore:
        return BlobStore(SubDisk(self.host.disk, f"runs/{run}"), self.host.reached)

    async def post(self, run: RunId, event: Event | Changed) -> None:
        """Hand an event to a run, after those already waiting."""
        await self._events.put((run, event))

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where nodes may find a coordinator of these runs, this one first."""
        return self.lead.addresses if self.lead is not None else (self.address,)

    def _other(self) -> list[Peer]:
        """Another coordinator, which may have what a leader before this one had. (One at a time: having one key, they
        all are the same peer to those who fetch.)"""
        found = self.lead.standing.others if self.lead is not None else ()
        blobs = [other.blobs for other in found if other.blobs]
        blobs += [peer.address for peer in self.elections.peers()]
        return [Peer(node=self.identity.node, address=self.host.random.choice(blobs))] if blobs else []

    def _serve_copies(self, run: RunId, blobs: BlobStore, evidence: Evidence | None = None) -> None:
        """Let others have what is here of a run that another coordinator leads."""
        self._resources.runs[run] = RunResources(
            run=run,
            identity=self.identity,
            blobs=blobs,
            read_entry=self._entry_reader(run),
            is_member=lambda node: False,
            evidence=evidence or load_evidence(self.store, run, lambda: own_keys(self.identity)),
            quota_bytes=0,
            max_blob_bytes=0,
        )

    async def _tell_coordinators(self) -> None:
        if self.lead is not None:
            for run in list(self.runs):
                await self.post(run, Coordinators(self.addresses))

    async def _mend(self) -> None:
        """Bring the states and data that the leader before had and this one has not: nodes hold them too."""
        while True:
            for run in list(self.runs.values()):
                for blob, size_bytes, holders in lasting_blobs(run.machine.view):
                    if not run.blobs.has(blob):
                        self._fetch(run, FetchBlob(NOWHERE, blob, size_bytes, holders))
            await self.host.clock.sleep(MEND_EVERY_S)

    # --- channels ----------------------------------------------------------------------------------------

    async def _serve_channel(self, channel: Channel) -> None:
        """One node's connection, from challenge to loss."""
        if (
            not self.ready.is_set()
        ):  # Standing by, or reading the logs: whoever comes goes elsewhere, and comes again.
            await channel.close()
            return
        admitted = await self._admit(channel)
        if admitted is None:
            await channel.close()
            return
        channel.admit()
        run_id, hello = admitted
        channel = Speaking(channel, hello.protocol)
        shown = read_keys(hello, self.runs[run_id].machine.view) if run_id in self.runs else None
        if isinstance(shown, Refuse):  # Its keys were revoked while it was being let in.
            await channel.close()
            return
        arrived = Arrived(
            node=node_of(hello),
            public=shown.public if shown else hello.public,
            line=shown.line if shown else (),
            name=clean_name(hello.name),
            address=hello.address[:200],
            length=max(0, hello.length),
            min_price_micro=max(0, hello.min_price_micro),
        )
        await self._converse(run_id, Connection(channel, arrived))

    async def _converse(self, run_id: RunId, connection: Connection) -> None:
        """Listen to a node until its channel breaks."""
        channel, node = connection.channel, connection.arrived.node
        if run_id in self.runs:
            await self._seat(self.runs[run_id], connection)
        elif not self.elections.hold(run_id, node, connection):
            await channel.close()
            return
        writer = asyncio.get_running_loop().create_task(connection.write(), name=f"write to {node[:8]}")
        try:
            allowance = Allowance(self.host.clock.now())
            while True:
                await self._hear(run_id, node, decode(await channel.recv()))
                if pause_s := allowance.wait_s(self.host.clock.now()):
                    await self.host.clock.sleep(pause_s)
        except (ChannelClosed, ShoalError):
            pass
        writer.cancel()
        await channel.close()
        self.elections.let_go(run_id, node, connection)
        run = self.runs.get(run_id)
        if run is not None and run.connections.get(node) is connection:
            del run.connections[node]
            await self.post(run_id, Lost(node))

    async def _hear(self, run_id: RunId, node: NodeId, message: Message) -> None:
        if isinstance(message, Vote | Stored):
            self.elections.hears(run_id, node, message)
        elif run_id not in self.elections.contests:
            await self.post(run_id, Said(node, message))
        elif not self._events.full():
            # While an entry waits for votes nothing else is taken: what is left out is said again.
            await self.post(run_id, Said(node, message))

    async def _seat(self, run: Run, connection: Connection) -> None:
        node = connection.arrived.node
        old = run.connections.get(node)
        run.connections[node] = connection
        if old is not None:
            await old.channel.close()
        await self.post(run.machine.run, connection.arrived)

    async def _admit(self, channel: Channel) -> tuple[RunId, Hello] | None:
        nonce = self.host.random.randbytes(32)
        oldest, newest = self._speaks
        challenge = Challenge(protocol=oldest, coordinator=self.identity.node, nonce=nonce, newest=newest)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await channel.send(stamped(encode(challenge), oldest))
                first = decode(await channel.recv())
                if isinstance(first, Hello):
                    return await self._greet(channel, first, nonce)
        except ShoalError as error:
            with contextlib.suppress(ChannelClosed):
                refuse = Refuse(code=error.code, cause=error.cause, next_step=error.next_step)
                await channel.send(stamped(encode(refuse), oldest))
            return None
        except (ChannelClosed, TimeoutError):
            return None
        if isinstance(first, Follow):
            await self.elections.serve_line(channel, first, nonce)
        return None

    async def _greet(self, channel: Channel, hello: Hello, nonce: bytes) -> tuple[RunId, Hello] | None:
        refuse = await self._judge(hello, nonce)
        if refuse is None and hello.revoke is not None and hello.run in self.runs:
            refuse = await self._revoked(hello)
        # Whoever speaks no version of ours is told so in its own: the words are the same in all.
        channel = Speaking(channel, hello.protocol) if 0 < hello.protocol < 128 else channel
        if refuse is not None:
            await channel.send(encode(refuse))
        elif not hello.probe:
            return hello.run, hello
        elif hello.run in self.runs:
            await channel.send(encode(self._welcome(hello.run)))
            own = PeerAddress(self.identity.node, self._blob_address)
            await channel.send(encode(Peers(edition=0, peers=(own,))))
        return None

    def _welcome(self, run: RunId) -> Welcome:
        machine = self.runs[run].machine
        heartbeat_s = machine.recipe.membership.heartbeat_s
        return Welcome(run=run, heartbeat_s=heartbeat_s, length=machine.view.length)

    async def _revoked(self, hello: Hello) -> Refuse:
        """A node says that its keys count no more: whoever holds the key may, and nobody comes in with it again."""
        word = revocation_in(hello, self.runs[hello.run].machine.view)
        said = parse(word.payload, Revocation) if word is not None else None
        if said is None:
            return not_a_member()
        await self.post(hello.run, RevokeAsked(said.node, said.reason, word))
        return revoked()

    async def _judge(self, hello: Hello, nonce: bytes) -> Refuse | None:
        run = self.runs.get(hello.run)
        if run is None and hello.run in self.elections.contests:
            return judge_caller(hello, nonce, self.identity.node)
        if run is None and self.elections.learns:
            raise ChannelClosed("it may hear of this run yet")
        if run is None:
            return not_served(hello.run, self.broken.get(hello.run))
        view, recipe = run.machine.view, run.machine.recipe
        return await self._doorkeeper.judge(hello, nonce, view, recipe, run.tokens)

    # --- events and effects ------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await self.host.clock.sleep(min((run.machine.tick_s for run in self.runs.values()), default=0.5))
            for run in list(self.runs):
                await self.post(run, Ticked())

    def _instant(self) -> Instant:
        return Instant(self.host.clock.now(), self.host.clock.wall_ms())

    async def _take(self, run: Run, event: Event | Changed) -> None:
        if isinstance(event, Changed):
            await self._restart(run, event.recipe)
            event = Ticked()
        if run.paused is not None:
            event = resting(event)
        for effect in run.machine.step(self._instant(), event):
            if run.evidence.proof is None:
                await self._carry_out(run, effect)
        if run.evidence.proof is not None:
            self._give_up(run, run.evidence.proof)
        self._tell_budget(run)
        self.changed.set()

    def _tell_budget(self, run: Run) -> None:
        """Say so, once, when a run pauses because nobody can be paid any more."""
        short = bool(run.machine.out_of_budget)
        if short and not run.short:
            reason = run.machine.out_of_budget
            log.warning("run_paused", extra={"run": run.machine.run[:12], "reason": reason})
        run.short = short

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
                if name in self.elections.contests:
                    await self.elections.commit(name, effect.position, effect.encoded)
                else:
                    await self.host.work(lambda: self.store.append(name, effect.position, effect.encoded))
                run.written = effect.position + 1
                self.host.reached("coordinator.after-append")
                self.host.reached(f"coordinator.after-{effect.kind}")
            case EnterCredit():
                await self._enter(run, effect)
            case SendReceipt():
                await self._send_receipts(run, [effect.node])
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
                if effect.node in run.connections:
                    self._spawn(self._dismiss(run.connections[effect.node]), f"dismiss {effect.node[:8]}")
            case FetchBlob():
                self._fetch(run, effect)
            case Prune():
                await self._prune(run)
            case Archive():
                self._spawn(self._archive(run, effect), f"archive {effect.position}")

    async def _dismiss(self, connection: Connection) -> None:
        """Cut a node off that was told why, whether or not it has gone by itself."""
        await self.host.clock.sleep(DISMISS_S)
        await connection.channel.close()

    def _send(self, run: Run, node: NodeId, frame: bytes) -> None:
        connection = run.connections.get(node)
        if connection is not None and not connection.put(frame):
            # A node that does not read would make this queue grow for ever: it may reconnect and catch up.
            run.connections.pop(node)
            self._spawn(connection.channel.close(), f"cut off {node[:8]}")
            self._spawn(self.post(run.machine.run, Lost(node)), f"lost {node[:8]}")

    async def _enter(self, run: Run, effect: EnterCredit) -> None:
        earners = await self.host.work(lambda: run.payroll.enter(effect.position, effect.head, effect.lines))
        await self._send_receipts(run, [node for node in earners if node in run.connections])

    async def _send_receipts(self, run: Run, nodes: list[NodeId]) -> None:
        for node, receipt in await self.host.work(lambda: run.payroll.receipts(nodes)):
            self._send(run, node, encode(Paid(receipt=receipt)))

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
        rules = run.machine.recipe.storage.retention
        await self.host.work(lambda: retain(run.machine.view, run.blobs, rules))
        await self.host.work(lambda: run.blobs.prune(keep, round_number, spare_bytes=spare_bytes))

    def _peers(self, run: Run, holders: tuple[NodeId, ...]) -> list[Peer]:
        """Who can be asked for a blob: those that hold it first."""
        seats = run.machine.seats.by_node
        order = [*holders, *(node for node in seats if node not in holders)]
        peers = [Peer(node=node, address=seats[node].address) for node in order if node in seats]
        return [peer for peer in (*peers, *self._other()) if peer.address]

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
