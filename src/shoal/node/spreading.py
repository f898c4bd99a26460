"""One update on its way to those who should hold it: pushed to one after the other, soon and side by side.

In flow a blob and peers; out flow their receipts, as they come. Invariant: every peer is given it once, and one that
hangs delays the next by a moment only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from shoal.base.host import Host, Peer
from shoal.base.ids import BlobId, NodeId
from shoal.wire.signed import Signed

STAGGER_S = 0.05
"""Between two pushes side by side: the first is through sooner than if all began at once."""
BRISK_S, BRISK_BYTES_S = 0.5, 1e6
"""An uplink is brisk if a push takes no longer than this, and its bytes at this rate."""
Vouches = Callable[[Peer, Signed], bool]


class Pusher(Protocol):
    async def push(self, blob: BlobId, peer: Peer) -> Signed | None:
        """Give a blob to a peer; its receipt, or None if it would not or could not take it."""


class Spreading:
    """The pushes of one update."""

    def __init__(self, host: Host, swarm: Pusher, blob: BlobId, size_bytes: int) -> None:
        self.asked: dict[NodeId, bool] = {}
        """Who was given it, and whether that is over."""
        self.brisk = True
        """Whether the uplink has room for more than is needed, by the last push."""
        self._host, self._swarm = host, swarm
        self._blob, self._size_bytes = blob, size_bytes
        self._receipts: dict[NodeId, tuple[Peer, Signed]] = {}
        self._news = asyncio.Event()

    async def push_each(self, peers: Sequence[Peer]) -> None:
        """Give it to all of these, in quick succession."""
        async with asyncio.TaskGroup() as tasks:
            for number, peer in enumerate(peers):
                if number:
                    await self._host.clock.sleep(STAGGER_S)
                tasks.create_task(self.push(peer), name=f"push to {peer.node[:8]}")

    async def push(self, peer: Peer) -> None:
        """Give it to a peer, unless it was before."""
        if peer.node in self.asked:
            return
        self.asked[peer.node] = False
        began = self._host.clock.now()
        try:
            receipt = await self._swarm.push(self._blob, peer)
            if receipt is not None:
                self._receipts[peer.node] = (peer, receipt)
                took_s = self._host.clock.now() - began
                self.brisk = took_s < BRISK_S + self._size_bytes / BRISK_BYTES_S
        finally:
            self.asked[peer.node] = True
            self._news.set()
            self._news = asyncio.Event()

    def forgive(self) -> None:
        """Those who would not or could not take it may be asked again."""
        self.asked = {node: over for node, over in self.asked.items() if not over or node in self._receipts}

    def receipts(self, vouches: Vouches) -> list[tuple[Peer, Signed]]:
        """Those that hold, in the order in which they came."""
        return [(peer, signed) for peer, signed in self._receipts.values() if vouches(peer, signed)]

    async def until(self, holds: Callable[[], bool], timeout_s: float | None) -> None:
        """Wait until something holds, no push is under way, or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                while not all(self.asked.values()) and not holds():
                    await self._news.wait()
        except TimeoutError:
            pass
