"""One run in service, and the nodes that are connected to it.

In flow frames for nodes; out flow their channels. Invariant: a queue in front of a channel is bounded, so that a node
that reads slowly costs this process so much and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from shoal.base.errors import ChannelClosed
from shoal.base.host import Channel
from shoal.base.ids import NodeId
from shoal.base.mailbox import Mailbox
from shoal.coordinator.admission import JoinToken
from shoal.coordinator.events import Arrived
from shoal.coordinator.machine import CoordinatorMachine
from shoal.coordinator.paying import Payroll
from shoal.replica.blobs import BlobStore
from shoal.replica.swarm import Swarm
from shoal.runlog.evidence import Evidence

MAX_QUEUED, MAX_QUEUED_BYTES = 1024, 16 << 20


@dataclass(slots=True)
class Connection:
    """A seated node's channel, with a bounded queue in front of it."""

    channel: Channel
    arrived: Arrived
    queue: Mailbox[bytes] = field(default_factory=lambda: Mailbox(MAX_QUEUED))
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
