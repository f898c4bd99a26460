"""The real world behind the `Host` protocol: clocks, files, threads, TLS.

In flow what coordinator and node ask for; out flow bytes over real links and disks. Invariant: nothing here
blocks the event loop: bulk and heavy work run in threads, control on connections of its own.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

from shoal.base.disk import Buffer, Disk
from shoal.base.host import Channel, Peer, Resources
from shoal.base.ids import NodeId
from shoal.wire.identity import Identity
from shoal.worlds.real import failpoints
from shoal.worlds.real.addresses import join_address, reachable_host
from shoal.worlds.real.channels import ChannelLimits, ChannelServer, SocketChannel, connect
from shoal.worlds.real.limits import Limits, Throttle
from shoal.worlds.real.meter import Meter
from shoal.worlds.real.peer_server import PeerServer
from shoal.worlds.real.peer_session import ServerLimits
from shoal.worlds.real.peers import PeerClient

T = TypeVar("T")


class RealClock:
    """Implements `base.host.Clock`."""

    def now(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class RealHost:
    """Implements `base.host.Host`. A port of None takes no inbound connections, 0 takes any free port.

    `advertise` is the host name or address that others should use, where it is not the one bound. Use it as
    `async with RealHost(...) as host:`, or call `close`.
    """

    def __init__(
        self,
        identity: Identity,
        disk: Disk,
        *,
        bind: str = "127.0.0.1",
        control_port: int | None = None,
        peer_port: int | None = None,
        advertise: str | None = None,
        limits: Limits | None = None,
        channel_limits: ChannelLimits | None = None,
        server_limits: ServerLimits | None = None,
        threads: int = 4,
    ) -> None:
        identity = identity.first  # By which others know this machine, whatever key speaks for it in logs.
        self.identity = identity
        self.meter = Meter()
        self._clock = RealClock()
        self._disk = disk
        self._random = random.SystemRandom()
        self._bind = bind
        self._control_port = control_port
        self._peer_port = peer_port
        self._advertise = advertise
        self._channel_limits = channel_limits or ChannelLimits()
        self._server_limits = server_limits or ServerLimits()
        self._throttle = Throttle(limits or Limits(), disk, self._clock.wall_ms)
        self._peers = PeerClient(identity, self._throttle, self.meter)
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="shoal-work")
        self._channels: weakref.WeakSet[SocketChannel] = weakref.WeakSet()
        self._channel_servers: list[ChannelServer] = []
        self._peer_servers: list[PeerServer] = []

    @property
    def clock(self) -> RealClock:
        return self._clock

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def random(self) -> random.Random:
        return self._random

    def reached(self, point: str) -> None:
        failpoints.reached(point)

    async def work(self, job: Callable[[], T], *, seconds: float = 0.0) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._workers, job)

    async def connect(self, address: str, node: NodeId) -> Channel:
        channel = await connect(address, node, self.meter, self._channel_limits, self._throttle)
        self._channels.add(channel)
        return channel

    async def listen(self, serve: Callable[[Channel], Awaitable[None]]) -> str:
        """As in `Host`; "" if this host has no control port. Raises SH-SERVE-01 or SH-SERVE-02."""
        if self._control_port is None:
            return ""
        server = ChannelServer(self.identity, serve, self.meter, self._channel_limits, self._throttle)
        port = await server.start(self._bind, self._control_port)
        self._channel_servers.append(server)
        return join_address(reachable_host(self._bind, self._advertise), port)

    async def offer(self, resources: Resources) -> str:
        """As in `Host`. Raises SH-SERVE-01 or SH-SERVE-02."""
        if self._peer_port is None:
            return ""
        server = PeerServer(self.identity, resources, self._throttle, self.meter, self._server_limits)
        port = server.start(self._bind, self._peer_port)
        self._peer_servers.append(server)
        return join_address(reachable_host(self._bind, self._advertise), port)

    async def get(self, peer: Peer, path: str, start: int, stop: int, *, timeout_s: float) -> bytes:
        """As in `Host`; besides, SH-JOIN-10 once the volunteer's monthly limit is spent."""
        return await self._peers.get(peer, path, start, stop, timeout_s)

    async def get_pieces(
        self,
        peer: Peer,
        path: str,
        cuts: Sequence[int],
        take: Callable[[int, Buffer], bool],
        *,
        timeout_s: float,
    ) -> int:
        """As in `Host`; besides, SH-JOIN-10 once the volunteer's monthly limit is spent."""
        return await self._peers.get_pieces(peer, path, cuts, take, timeout_s)

    async def put(self, peer: Peer, path: str, body: bytes, *, timeout_s: float) -> bytes:
        """As in `Host`; besides, SH-JOIN-10 once the volunteer's monthly limit is spent."""
        return await self._peers.put(peer, path, body, timeout_s)

    def inbound_connections(self) -> int:
        """How many bulk connections peers hold to us now, for telemetry."""
        return sum(server.connections() for server in self._peer_servers)

    async def close(self) -> None:
        """Close every port and connection. Jobs under way in `work` are left to end by themselves."""
        await asyncio.to_thread(self._throttle.close)
        self._peers.close()
        async with asyncio.TaskGroup() as group:
            for channel in list(self._channels):
                group.create_task(channel.close(), name="close a channel")
            for channels in self._channel_servers:
                group.create_task(channels.close(), name="close-channels")
            for peers in self._peer_servers:
                group.create_task(asyncio.to_thread(peers.close), name="close-peers")
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> RealHost:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
