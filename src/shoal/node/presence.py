"""A node's presence in a run: its line to the coordinator, its copy of the log, its word, and its signs of life.

In flow messages and what this node kept; out flow events to its machine, in order, and heartbeats. Invariant: one event
at a time; what is asked of this node is answered after everything that was said before; with proof against the
coordinator it tells everyone, and stops. What the machine wants done is for whoever builds on this (`service.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from functools import partial
from typing import Any

from shoal.base.disk import SubDisk
from shoal.base.errors import ChannelClosed, ShoalError
from shoal.base.host import Host, Resources
from shoal.base.ids import BlobId, NodeId
from shoal.base.mailbox import Mailbox
from shoal.measure.reporting import NodeMeter
from shoal.measure.watching import TimedHost
from shoal.node import events as ev
from shoal.node.keeping import Keeping
from shoal.node.link import ControlLink
from shoal.node.machine import NodeMachine
from shoal.node.options import NodeOptions
from shoal.node.session import Invitation
from shoal.node.supply import Supply
from shoal.node.watch import Watch
from shoal.replica.blobs import BlobStore
from shoal.replica.serving import ResourcesByRun, RunResources
from shoal.replica.swarm import Swarm
from shoal.runlog.chain import Equivocation
from shoal.runlog.entries import Attestation, Claim, Folding
from shoal.runlog.evidence import Evidence, encode_proof
from shoal.runlog.keys import Keys
from shoal.runlog.view import RunView
from shoal.runlog.voter import Voter
from shoal.wire.identity import Identity, Signer
from shoal.wire.messages import Beat, Entries, Heartbeat, encode
from shoal.wire.signed import Signed, sign

_HEARD = (ev.Heard, ev.Asked)
REQUEST_TIMEOUT_S = 20.0
MAX_BACKLOG = 4096
FIRST_QUOTA_BYTES = 1 << 30
"""Room for others' blobs until the recipe says how much there is."""


class Presence(ABC):
    """One node in one run. `run()` returns why the run ended, or raises `ShoalError`."""

    def __init__(self, host: Host, identity: Identity, invitation: Invitation, options: NodeOptions) -> None:
        self.host = host
        self.identity = identity
        self.invitation = invitation
        self.options = options
        self._own_disk = SubDisk(host.disk, f"runs/{invitation.run}")
        self.blobs = BlobStore(self._own_disk, host.reached)
        self.keeping = Keeping(self._own_disk, invitation.run, host.reached)
        self._kept: Claim | None = None
        self._local: bytes | None = None
        """The last claim before this start, and the private state that followed it."""
        self._blob_address = ""
        self._link = ControlLink(host, identity, invitation, self._post, self.keeping.save_coordinators)
        self.meter = NodeMeter(invitation.coordinator)
        timed = TimedHost(host, self.meter.links)
        swarm = Swarm(timed, self.blobs, invitation.run, timeout_s=REQUEST_TIMEOUT_S)
        self._supply = Supply(host, self.blobs, swarm, self._link)
        self._voter = Voter(self.keeping.log, invitation.run, self._coordinator_key)
        self._evidence = Evidence(
            run=invitation.run, coordinator=self._coordinator_keys, keep=self.keeping.save_proof
        )
        self._watch = Watch(timed, invitation.run, self._link, self._evidence)
        self._stop_training = asyncio.Event()
        self._events: Mailbox[ev.Event] = Mailbox()
        self._finished: asyncio.Future[str] | None = None
        self._leaving = ""
        self._tasks = asyncio.TaskGroup()
        self._running: dict[asyncio.Task[None], None] = {}
        self.machine = self._machine(RunView(), None)
        self._resources: RunResources

    @abstractmethod
    async def _carry_out(self, effect: ev.Effect) -> None:
        """What the machine wants done."""

    @abstractmethod
    def _heartbeat(self) -> Heartbeat:
        """What this node is doing."""

    async def run(self) -> str:
        """Take part until the run ends."""
        await self._wake_up()
        self._finished = asyncio.get_running_loop().create_future()
        if self._leaving:
            return self._leaving
        async with self._tasks:
            self._spawn(self._stay_connected(), "stay connected")
            self._spawn(self._watch.keep_asking(), "ask for proof")
            self._spawn(self._tick(), "tick")
            self._spawn(self._take_events(), "take events")
            reason = await self._finished
            for task in list(self._running):
                task.cancel()
        await self._link.say_goodbye(reason)
        return reason

    async def leave(self, reason: str) -> None:
        """Leave on purpose; `run` returns soon after, or at once if it has not got going yet."""
        self._leaving = reason
        await self._link.say_goodbye(reason)
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(reason)

    async def bring(self, blob: BlobId) -> None:
        """Have a blob here, however long it takes."""
        await self._supply.fetch(blob, None)

    # --- waking up ------------------------------------------------------------------------------------

    async def _wake_up(self) -> None:
        """Load what this node kept, and offer it to peers."""
        load_view = partial(self.keeping.load_view, self.invitation.coordinator)
        view = await self.host.work(load_view)
        self._link.told = await self.host.work(self.keeping.load_coordinators)
        kept = await self.host.work(self.keeping.load_outgoing)
        if kept is not None and not self._own_claim(kept[0], view):
            self.keeping.forget_outgoing()
            kept = None  # It rotted, and nobody would take it.
        self.machine = self._machine(view, kept[0] if kept else None)
        self._kept, self._local = (kept[0].claim, kept[1]) if kept else (None, None)
        self._evidence.restore(await self.host.work(self.keeping.load_proof))
        if self._evidence.proof is not None:
            raise self._evidence.proof.error(self.invitation.coordinator)
        self._resources = RunResources(
            run=self.invitation.run,
            identity=self.identity,
            blobs=self.blobs,
            read_entry=self._read_entry,
            is_member=lambda node: node in view.members or self._lodges(node),
            evidence=self._evidence,
            quota_bytes=FIRST_QUOTA_BYTES,
        )
        self._blob_address = await self.host.offer(self._offered())

    def _offered(self) -> Resources:
        """What peers find here."""
        return ResourcesByRun({self.invitation.run: self._resources})

    def _lodges(self, node: NodeId) -> bool:
        """Whether one who is no member of the run may leave blobs here."""
        return False

    def _own_claim(self, kept: ev.Outgoing, view: RunView) -> bool:
        """Whether this node signed it: with the key it has, or with one it had when it began the work."""
        keys = view.keys.get(self.identity.node, Keys(self._signer(view).public))
        news = Keys(self._signer(view).public)
        return any(one.signed(kept.signed, Claim, kept.claim.plan) for one in (keys, news))

    def _machine(self, view: RunView, outgoing: ev.Outgoing | None) -> NodeMachine:
        return NodeMachine(
            node=self.identity.node,
            coordinator=self.invitation.coordinator,
            run=self.invitation.run,
            view=view,
            outgoing=outgoing,
        )

    def _read_entry(self, position: int) -> bytes | None:
        return next(self.keeping.log.read(self.invitation.run, position, position + 1), None)

    # --- its word -------------------------------------------------------------------------------------

    def _signer(self, view: RunView) -> Signer:
        """What signs this node's words as the run asks for it."""
        return self.identity.for_key(view.genesis.coordinator if view.genesis else b"")

    def _sign(self, word: Claim | Attestation | Folding) -> Signed:
        return sign(self._signer(self.machine.view), word)

    def _coordinator_key(self) -> bytes | None:
        keys = self._coordinator_keys()
        return keys[0] if keys else None

    def _coordinator_keys(self) -> tuple[bytes, ...]:
        return self.machine.view.coordinator_keys

    # --- events ---------------------------------------------------------------------------------------

    async def _take_events(self) -> None:
        while True:
            event = await self._events.get()
            if self._evidence.proof is not None:
                await self._stop_if_proven()
            if isinstance(event, ev.Asked):
                await self._answer(event)
                continue
            had_state = self.machine.at >= 0
            for effect in self.machine.step(self.host.clock.now(), event):
                await self._carry_out(effect)
            if not had_state and self.machine.at >= 0:
                await self._link.send(
                    self._heartbeat()
                )  # It can be given work from now on, not from the next beat.

    async def _answer(self, asked: ev.Asked) -> None:
        """Vote, or store a proposed entry: after everything that was said before is in this node's copy of the log."""
        answer = await self.host.work(partial(self._voter.answer, asked.message))
        if answer is not None:
            self.host.reached("node.before-vote")
            with contextlib.suppress(ChannelClosed):
                await asked.channel.send(encode(answer))

    def _post(self, event: ev.Event) -> None:
        if isinstance(event, ev.Heard) and isinstance(event.message, Beat):
            self.meter.answered(event.message.probe, self.host.clock.now())
        # A coordinator that talks faster than this node listens must not fill its memory. What is dropped is
        # asked for again; what this node's own work reports is never dropped, and is bounded by that work.
        if len(self._events) < MAX_BACKLOG or not isinstance(event, _HEARD):
            self._events.put_nowait(event)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._running.pop)
        return task

    async def _stay_connected(self) -> None:
        try:
            await self._link.stay_connected(
                self._blob_address, lambda: self.machine.view.length, self.options.give_up_s
            )
        except ShoalError as refusal:
            # A coordinator that was shown the proof refuses everybody with it, and gives it to whoever asks.
            if refusal.code != "SH-LOG-02" or not await self._watch.ask_coordinator():
                raise

    async def _tick(self) -> None:
        """Heartbeats go out from here, whatever else this node is busy with."""
        while True:
            await self._link.send(self._heartbeat())
            self._post(ev.Ticked())
            await self._link.hang_up_on_silence()
            await self.host.clock.sleep(self._link.heartbeat_s)

    # --- proof against the coordinator ----------------------------------------------------------------

    async def _compare_logs(self) -> None:
        """Ask some peer for its entry of the last seal: if it differs, the coordinator told us different things."""
        entry = await self._watch.compare(self.machine.view.at)
        if entry is not None:
            self._post(ev.Heard(Entries(items=(entry,))))

    async def _dispute(self, dispute: ev.Disputed) -> None:
        """Two entries for one place, both signed by the coordinator: keep the proof and stop."""
        ours = self._read_entry(dispute.position)
        if ours is not None:
            proof = encode_proof(Equivocation(ours, dispute.other))
            await self.host.work(partial(self._evidence.take, proof))
            await self._stop_if_proven()

    async def _stop_if_proven(self) -> None:
        """With proof against the coordinator, found here or received: tell everyone, and stop with it."""
        proof = self._evidence.proof
        if proof is not None:
            self._stop_training.set()
            self.machine.doing = "telling everyone that the coordinator signed two different entries"
            members = [m.node for m in self.machine.view.members.values() if m.present]
            others = [node for node in members if node != self.identity.node]
            await self._watch.spread(others, can_be_asked=bool(self._blob_address))
            raise proof.error(self.invitation.coordinator)
