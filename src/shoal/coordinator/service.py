"""The coordinator's service: channels in, machine, effects out, for every run it has.

In flow control channels and blob requests; out flow log entries and messages. Invariant: one task takes one
event at a time and carries out its effects in order, so a message never overtakes the entry it rests on;
a node that reads too slowly is cut off, never waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from shoal.base.disk import SubDisk
from shoal.base.errors import ShoalError
from shoal.base.host import Host, Peer
from shoal.base.ids import NodeId, RunId
from shoal.base.logstore import MEND_STORE, LogStore
from shoal.base.mailbox import Mailbox
from shoal.coordinator.accused import accused, load_evidence
from shoal.coordinator.admission import (
    TOKEN_PREFIX,
    JoinToken,
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
from shoal.coordinator.copies import Copies
from shoal.coordinator.doorkeeping import Doorkeeper, Stake
from shoal.coordinator.doors import Doors
from shoal.coordinator.electing import Elections, Ground
from shoal.coordinator.events import (
    Append,
    Archive,
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
    Send,
    SendEntries,
    SendReceipt,
    Tell,
    Ticked,
)
from shoal.coordinator.keyring import check_founder, leads_to, of_another_key, own_keys
from shoal.coordinator.leading import Lead
from shoal.coordinator.machine import CoordinatorMachine
from shoal.coordinator.paying import open_books
from shoal.coordinator.served import MAX_QUEUED, Connection, Run
from shoal.coordinator.supplies import REQUEST_TIMEOUT_S, Supplies
from shoal.replica.blobs import BlobStore
from shoal.replica.serving import ResourcesByRun, RunResources
from shoal.replica.swarm import Swarm
from shoal.runlog.chain import Equivocation
from shoal.runlog.evidence import Evidence
from shoal.runlog.statements import most_bytes
from shoal.runlog.view import RunView, verify_log
from shoal.strategy.recipe import Recipe, recipe_in_log
from shoal.wire.identity import Identity
from shoal.wire.messages import (
    Entries,
    Paid,
    encode,
)
from shoal.wire.versions import HERE, Speaks

log = logging.getLogger(__name__)

DISMISS_S = 1.0
PAGE_ENTRIES, PAGE_BYTES = 256, 1 << 20


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
        self.runs: dict[RunId, Run] = {}
        self.broken: dict[RunId, ShoalError] = {}
        """Runs that are not served, with the reason: their log does not hold, or there are two."""
        self.ready = asyncio.Event()
        self.changed = asyncio.Event()
        """Set after every event that changed something; for those who show it."""
        self.address = ""
        self._resources = ResourcesByRun()
        self._blob_address = ""
        self._events: Mailbox[tuple[RunId, Event | Changed]] = Mailbox(MAX_QUEUED)
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
        self.supplies = Supplies(
            host=host,
            runs=self.runs,
            others=self._other,
            post=self.post,
            send=self._send,
            spawn=self._spawn,
        )
        self._doors = Doors(
            host=host,
            identity=identity,
            speaks=speaks,
            doorkeeper=Doorkeeper(host, store, identity.node, stake, speaks),
            elections=self.elections,
            runs=self.runs,
            broken=self.broken,
            post=self.post,
            is_ready=self.ready.is_set,
            is_full=self._events.full,
            blob_address=lambda: self._blob_address,
        )

    async def serve(self) -> None:
        """Run until cancelled. Raises `ShoalError` if it cannot start or a log does not hold."""
        self._blob_address = await self.host.offer(self._resources)
        self.address = await self.host.listen(self._doors.serve)
        if self.lead is not None:
            await self.host.work(lambda: check_founder(self.store, self.identity))
            copies = Copies(self.host, self.store, self.blob_store, self._other, self._serve_copies)
            await self.lead.win(self.host, self.address, self._blob_address, copies.follow)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            if self.lead is not None:  # From here on: to check long logs may take longer than a lease.
                tasks.create_task(self.lead.hold(self.host, self._tell_coordinators), name="hold the lead")
            await self._open_runs()
            self.broken |= self.elections.start(self.address, self._blob_address)
            tasks.create_task(self._tick(), name="coordinator ticks")
            if self.lead is not None:
                tasks.create_task(self.supplies.mend(), name="bring what the last leader had")
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
                MEND_STORE,
            )
        if not leads_to(view, self.identity):
            raise of_another_key(run)
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
            self._spawn(self.supplies.mend(), "bring what the last leader had")
        await self.post(contest.run, Coordinators(contest.coordinators))
        while contest.held and contest.run in self.runs:
            node, connection = contest.held.popitem()
            contest.held_at.pop(node)
            if isinstance(connection, Connection):
                await self._doors.seat(self.runs[contest.run], connection)

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
            case Send():
                self._send(run, effect.node, encode(effect.message))
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
                self.supplies.fetch(run, effect)
            case Prune():
                await self.supplies.prune(run)
            case Archive():
                self._spawn(self.supplies.archive(run, effect), f"archive {effect.position}")

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

    def _spawn(self, work: object, name: str) -> None:
        assert self._tasks is not None and asyncio.iscoroutine(work)
        self._tasks.create_task(work, name=name)
