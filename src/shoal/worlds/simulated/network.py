"""A flow-level network between simulated hosts, with everything that goes wrong on real ones.

In flow frames and requests; out flow the same, later, twice, out of order or never. Invariant: what happens is
drawn from the world's random stream alone, a message in flight belongs to the world, not to its sender, and no
line carries more bytes than its rate allows, however many transfers share it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from shoal.base.errors import ChannelClosed
from shoal.base.host import Peer, Refused
from shoal.base.ids import NodeId
from shoal.base.mailbox import Mailbox
from shoal.worlds.simulated.loop import SimLoop, call_later

if TYPE_CHECKING:
    from shoal.worlds.simulated.host import SimHost


_OTHER = bytes(byte ^ 0x55 for byte in range(256))
GAP_S = 2e-6
"""Between two frames in order: two ticks of the clock, so that rounding cannot make them one moment."""

BUFFER_S = 0.25
"""How many seconds of sending a host takes in ahead of its uplink; beyond that, whoever sends frames waits."""


@dataclass(slots=True)
class Link:
    """One host's line: what it adds to every message it sends or receives."""

    latency_s: float = 0.02
    jitter_s: float = 0.005
    up_bytes_s: float = 12.5e6
    down_bytes_s: float = 12.5e6


@dataclass(slots=True)
class Faults:
    """What the network does to messages now. Probabilities per message."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    """Of a fetched range: the peer sends other bytes."""
    cut: set[tuple[str, str]] = field(default_factory=set)
    """One-way partitions: (from, to)."""
    clogged: dict[str, float] = field(default_factory=dict)
    """Hosts whose messages take so many seconds longer."""


class SimChannel:
    """One end of a pipe of frames."""

    def __init__(self, network: SimNetwork, here: SimHost, there: SimHost) -> None:
        self._network = network
        self._here, self._there = here, there
        self._inbox: Mailbox[bytes | None] = Mailbox()
        self._closed = False
        self._last_arrival = 0.0
        self.other: SimChannel

    async def send(self, frame: bytes) -> None:
        if self._closed:
            raise ChannelClosed("closed")
        self._network.tap(self._here.name, self._there.name, frame)
        network = self._network
        arrivals = network.arrivals(self._here, self._there, len(frame), self._last_arrival)
        if arrivals:
            self._last_arrival = max(self._last_arrival, arrivals[0])  # A second copy holds nothing up.
            take = partial(self.other.take, frame)
            for arrival in arrivals:
                call_later(network.loop, arrival - network.loop.time(), take)
        if (ahead := network.ahead_s(self._here)) > BUFFER_S:
            await asyncio.sleep(ahead - BUFFER_S)

    async def recv(self) -> bytes:
        if self._closed and not self._inbox:
            raise ChannelClosed("closed")
        frame = await self._inbox.get()
        if frame is None:
            self._closed = True
            raise ChannelClosed("the other side is gone")
        return frame

    def admit(self) -> None:
        """Simulated strangers send no frames that would need a limit."""

    async def close(self) -> None:
        """Close this end now; the other end hears of it after everything that was sent before."""
        self.shut()
        now = self._network.loop.time()
        arrival = now + self._network.delay(self._here, self._there, 0)
        call_later(self._network.loop, max(arrival, self._last_arrival + GAP_S) - now, self.other.shut)

    def take(self, frame: bytes) -> None:
        if not self._closed:
            self._inbox.put_nowait(frame)

    def shut(self) -> None:
        """Closed from here or from there: whoever waits hears of it."""
        if not self._closed:
            self._closed = True
            self._inbox.put_nowait(None)


class SimNetwork:
    """All hosts and what lies between them."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.hosts: dict[str, SimHost] = {}
        self.faults = Faults()
        self.tap: Callable[[str, str, bytes], None] = lambda sender, receiver, frame: None
        """Sees every control frame as it is sent; for checkers."""
        self.sent_bytes = 0
        self._channels: list[tuple[SimChannel, SimChannel]] = []
        self._up_free_at: dict[str, float] = {}
        self._down_free_at: dict[str, float] = {}
        """When each host's line has carried everything booked on it."""
        self._rng = loop.rng

    def delay(self, sender: SimHost, receiver: SimHost, size: int) -> float:
        """Seconds one message of this size takes now, behind what its lines carry already."""
        jitter = self._rng.random() * (sender.link.jitter_s + receiver.link.jitter_s)
        clogged = self.faults.clogged
        clog = clogged.get(sender.name, 0.0) + clogged.get(receiver.name, 0.0) if clogged else 0.0
        # Both lines of a transfer queue on their own: a busy receiver does not hold up what its sender has for others.
        now = self.loop.time()
        up_over = max(now, self._up_free_at.get(sender.name, 0.0)) + size / sender.link.up_bytes_s
        down_over = max(now, self._down_free_at.get(receiver.name, 0.0)) + size / receiver.link.down_bytes_s
        if size:
            self._up_free_at[sender.name], self._down_free_at[receiver.name] = up_over, down_over
        queued = max(up_over - now, down_over - now)
        return sender.link.latency_s + receiver.link.latency_s + jitter + queued + clog

    def ahead_s(self, sender: SimHost) -> float:
        """How far the host's uplink is behind: one waits while it is far, lest a channel crowd out the others."""
        return self._up_free_at.get(sender.name, 0.0) - self.loop.time()

    def arrivals(self, sender: SimHost, receiver: SimHost, size: int, after: float) -> list[float]:
        """When a frame arrives: never, once or twice; in order unless the network reorders."""
        self.sent_bytes += size
        rng, faults = self._rng, self.faults
        if (sender.name, receiver.name) in faults.cut or rng.random() < faults.loss:
            return []
        arrival = self.loop.time() + self.delay(sender, receiver, size)
        if rng.random() >= faults.reorder:
            arrival = max(arrival, after + GAP_S)
        if rng.random() < faults.duplicate:
            return [arrival, arrival + rng.random()]
        return [arrival]

    # --- channels ----------------------------------------------------------------------------------------

    async def connect(self, here: SimHost, address: str, node: NodeId) -> SimChannel:
        there = self.hosts.get(address)
        await self._travel(here, there, 0, 3.0)
        if there is None or not there.alive or there.on_channel is None or there.node != node:
            raise ChannelClosed(f"{address} does not answer")
        near, far = SimChannel(self, here, there), SimChannel(self, there, here)
        near.other, far.other = far, near
        self._channels.append((near, far))
        serve: Callable[[SimChannel], Awaitable[None]] = there.on_channel
        self.loop.spawn(there.owner, _served(serve, far), f"channel from {here.name}")
        await self._travel(there, here, 0, 3.0)
        return near

    def drop_host(self, host: SimHost) -> None:
        """The host is gone: its connections break, and the other ends hear of it a little later."""
        for near, far in self._channels:
            for end in (near, far):
                if end._here is host:
                    end._closed = True
                    call_later(self.loop, self.delay(host, end._there, 0), end.other.shut)
        self._channels = [pair for pair in self._channels if not (pair[0]._closed or pair[1]._closed)]
        self._up_free_at.pop(host.name, None)
        self._down_free_at.pop(host.name, None)

    # --- ranges ------------------------------------------------------------------------------------------

    async def get(
        self, here: SimHost, peer: Peer, path: str, start: int, stop: int, timeout_s: float
    ) -> bytes:
        there = await self._reach(here, peer, 200, timeout_s)
        resources = there.resources
        data = None
        with contextlib.suppress(HostDied):
            data = resources.get(path, start, stop) if resources else None
        size = len(data) if data else 0
        self.sent_bytes += size
        await self._travel(there, here, size, timeout_s)
        if data is None or not there.alive:
            raise ChannelClosed(f"{peer.node[:12]} does not have {path}")
        if self._rng.random() < self.faults.corrupt:
            data = data.translate(_OTHER)
        return data

    async def put(self, here: SimHost, peer: Peer, path: str, body: bytes, timeout_s: float) -> bytes:
        there = await self._reach(here, peer, len(body), timeout_s)
        self.sent_bytes += len(body)
        if there.resources is None or here.node is None:
            raise ChannelClosed(f"{peer.node[:12]} takes nothing")
        try:
            reply = there.resources.put(path, body, here.node)
        except HostDied:
            raise ChannelClosed(f"{peer.node[:12]} went away") from None
        except Refused as refused:
            await self._travel(there, here, 100, timeout_s)
            raise refused from None
        await self._travel(there, here, len(reply), timeout_s)
        if not there.alive:
            raise ChannelClosed(f"{peer.node[:12]} went away")
        return reply

    async def _reach(self, here: SimHost, peer: Peer, size: int, timeout_s: float) -> SimHost:
        there = self.hosts.get(peer.address)
        await self._travel(here, there, size, timeout_s)
        if there is None or not there.alive or there.node != peer.node:
            raise ChannelClosed(f"{peer.address or peer.node[:12]} does not answer")
        if there.paused:
            await asyncio.sleep(timeout_s)
            raise ChannelClosed(f"{peer.address} timed out")
        return there

    async def _travel(self, sender: SimHost, receiver: SimHost | None, size: int, timeout_s: float) -> None:
        """Wait out one direction of a request; a cut, a lost message or a line too busy costs the timeout."""
        if receiver is None:
            await asyncio.sleep(0.05)
            return
        lost = (sender.name, receiver.name) in self.faults.cut or self._rng.random() < self.faults.loss
        if lost:
            await asyncio.sleep(min(timeout_s, 5.0))
            raise ChannelClosed("timed out")
        delay = self.delay(sender, receiver, size)
        await asyncio.sleep(min(delay, timeout_s))
        if delay > timeout_s:
            raise ChannelClosed("timed out")


class HostDied(BaseException):
    """Raised where a simulated host dies at a named point; nothing of it runs on."""


async def _served(serve: Callable[[SimChannel], Awaitable[None]], channel: SimChannel) -> None:
    await serve(channel)
