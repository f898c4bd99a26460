"""A host whose requests to peers are timed in passing.

In flow the requests of whoever moves blobs; out flow their answers, unchanged, and their times to a `LinkMeter`.
Invariant: nothing is asked of any peer that would not be asked without it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from shoal.base.disk import Buffer, Disk
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
        return self._timed(ask, len, peer, timeout_s)

    def get_pieces(
        self,
        peer: Peer,
        path: str,
        cuts: Sequence[int],
        take: Callable[[int, Buffer], bool],
        *,
        timeout_s: float,
    ) -> Coroutine[Any, Any, int]:
        ask = partial(self._host.get_pieces, peer, path, cuts, take, timeout_s=timeout_s)
        return self._timed(ask, int, peer, timeout_s)

    def put(self, peer: Peer, path: str, body: bytes, *, timeout_s: float) -> Coroutine[Any, Any, bytes]:
        ask = partial(self._host.put, peer, path, body, timeout_s=timeout_s)
        return self._timed(ask, lambda _: len(body), peer, timeout_s, up=True)

    async def _timed(
        self,
        ask: Callable[[], Awaitable[T]],
        size: Callable[[T], int],
        peer: Peer,
        timeout_s: float,
        *,
        up: bool = False,
    ) -> T:
        """Its answer, for which `size` of it was moved. One that is not what was wanted, but came soon, is no failure
        of the way."""
        began = self.clock.now()
        self._meter.begin(peer.node, began, up=up)
        moved: int | None = None
        well = True
        try:
            answer = await ask()
            moved = size(answer)
            return answer
        except ChannelClosed:
            well = self.clock.now() - began < TIMED_OUT_SHARE * timeout_s
            raise
        finally:
            self._meter.end(peer.node, began, self.clock.now(), moved, up=up, well=well)
