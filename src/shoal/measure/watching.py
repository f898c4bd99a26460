"""A host whose requests to peers are timed in passing.

In flow the requests of whoever moves blobs; out flow their answers, unchanged, and their times to a `LinkMeter`.
Invariant: nothing is asked of any peer that would not be asked without it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from shoal.base.disk import Disk
from shoal.base.errors import ChannelClosed
from shoal.base.host import Channel, Clock, Host, Peer, Resources
from shoal.base.ids import NodeId
from shoal.measure.links import LinkMeter

T = TypeVar("T")
TIMED_OUT_SHARE = 0.4
"""A failure that took this much of the time it had was no plain \"no\"."""


class TimedHost:
    """Implements `base.host.Host` by another one."""

    def __init__(self, host: Host, meter: LinkMeter) -> None:
        self._host = host
        self._meter = meter
        self.clock: Clock = host.clock
        self.disk: Disk = host.disk
        self.random: random.Random = host.random

    def reached(self, point: str) -> None:
        self._host.reached(point)

    def work(self, job: Callable[[], T], *, seconds: float = 0.0) -> Coroutine[Any, Any, T]:
        return self._host.work(job, seconds=seconds)

    async def connect(self, address: str, node: NodeId) -> Channel:
        return await self._host.connect(address, node)

    async def listen(self, serve: Callable[[Channel], Awaitable[None]]) -> str:
        return await self._host.listen(serve)

    async def offer(self, resources: Resources) -> str:
        return await self._host.offer(resources)

    def get(
        self, peer: Peer, path: str, start: int, stop: int, *, timeout_s: float
    ) -> Coroutine[Any, Any, bytes]:
        ask = partial(self._host.get, peer, path, start, stop, timeout_s=timeout_s)
        return self._timed(ask, peer, timeout_s)

    def put(self, peer: Peer, path: str, body: bytes, *, timeout_s: float) -> Coroutine[Any, Any, bytes]:
        ask = partial(self._host.put, peer, path, body, timeout_s=timeout_s)
        return self._timed(ask, peer, timeout_s, len(body))

    async def _timed(
        self,
        ask: Callable[[], Awaitable[bytes]],
        peer: Peer,
        timeout_s: float,
        sent_bytes: int | None = None,
    ) -> bytes:
        """Its answer. One that is not what was wanted, but came soon, is no failure of the way."""
        up, began = sent_bytes is not None, self.clock.now()
        self._meter.begin(peer.node, began, up=up)
        moved: int | None = None
        well = True
        try:
            answer = await ask()
            moved = len(answer) if sent_bytes is None else sent_bytes
            return answer
        except ChannelClosed:
            well = self.clock.now() - began < TIMED_OUT_SHARE * timeout_s
            raise
        finally:
            self._meter.end(peer.node, began, self.clock.now(), moved, up=up, well=well)
