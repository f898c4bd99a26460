"""A simulated host: the `Host` protocol over the virtual loop, network and disk.

In flow the same calls as in the real world; out flow the same answers, at virtual times. Invariant: two
incarnations of one host share its disk and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from shoal.base.disk import Buffer
from shoal.base.host import Channel, Peer, Resources
from shoal.base.ids import NodeId
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.loop import TICKS, Owner, SimLoop
from shoal.worlds.simulated.network import HostDied, Link, SimNetwork

T = TypeVar("T")
SLOW_JOBS = 0.15


class SimClock:
    """This host's idea of time: it may run fast or slow, and its calendar may be wrong."""

    def __init__(self, loop: SimLoop, skew_s: float, rate: float) -> None:
        self._loop, self._skew_s, self._rate = loop, skew_s, rate

    def now(self) -> float:
        return self._loop._now_ticks / TICKS * self._rate + 1000.0

    def wall_ms(self) -> int:
        return int((1_800_000_000 + self._skew_s + self._loop.time() * self._rate) * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self._rate)


class SimHost:
    """One incarnation of one machine."""

    def __init__(
        self,
        loop: SimLoop,
        network: SimNetwork,
        name: str,
        incarnation: int,
        disk: SimDisk,
        *,
        node: NodeId,
        link: Link,
        speed: float = 1.0,
        inbound: bool = True,
        skew_s: float = 0.0,
        rate: float = 1.0,
    ) -> None:
        self.name = name
        self.node = node
        self.owner: Owner = (name, incarnation)
        self.link = link
        self.alive = True
        self.paused = False
        self.resources: Resources | None = None
        self.on_channel: Callable[[Channel], Awaitable[None]] | None = None
        self.on_point: Callable[[str], bool] = lambda point: False
        """Says whether to die here."""
        self._loop = loop
        self._network = network
        self.disk = disk
        self.clock = SimClock(loop, skew_s, rate)
        self.random = random.Random(f"host/{name}/{incarnation}/{loop.rng.random()}")  # noqa: S311
        self._speed = speed
        self._inbound = inbound
        network.hosts[name] = self

    def reached(self, point: str) -> None:
        if not self.alive:
            raise HostDied
        if self.on_point(point):
            self.die()
            raise HostDied

    def die(self) -> None:
        """kill -9 and power off: tasks stop, connections break, unsynced writes are gambled away."""
        self.alive = False
        self._loop.kill(self.owner)
        self._network.drop_host(self)
        self.disk.crash(self._loop.rng)

    async def work(self, job: Callable[[], T], *, seconds: float = 0.0) -> T:
        # Small jobs are often done before anything else happens; now and then they take a moment.
        if seconds or self.random.random() < SLOW_JOBS:
            await asyncio.sleep(0.002 * self.random.random() + seconds / self._speed)
        return job()

    async def connect(self, address: str, node: NodeId) -> Channel:
        return await self._network.connect(self, address, node)

    async def listen(self, serve: Callable[[Channel], Awaitable[None]]) -> str:
        self.on_channel = serve
        return self.name

    async def offer(self, resources: Resources) -> str:
        self.resources = resources
        return self.name if self._inbound else ""

    def get(
        self, peer: Peer, path: str, start: int, stop: int, *, timeout_s: float
    ) -> Coroutine[Any, Any, bytes]:
        return self._network.get(self, peer, path, start, stop, timeout_s)

    async def get_pieces(
        self,
        peer: Peer,
        path: str,
        cuts: Sequence[int],
        take: Callable[[int, Buffer], bool],
        *,
        timeout_s: float,
    ) -> int:
        data = memoryview(await self.get(peer, path, cuts[0], cuts[-1], timeout_s=timeout_s))
        for start, stop in itertools.pairwise(cuts):
            piece = data[start - cuts[0] : stop - cuts[0]]
            if not await self.work(partial(take, start, piece)) or len(piece) < stop - start:
                break
        return len(data)

    def put(self, peer: Peer, path: str, body: bytes, *, timeout_s: float) -> Coroutine[Any, Any, bytes]:
        return self._network.put(self, peer, path, body, timeout_s)
