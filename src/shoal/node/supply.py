"""Blobs in and out of this node: fetched however long it takes, pushed to those who must hold them.

In flow blob ids with who should have them; out flow blobs on this disk, and receipts of others. Invariant: a fetch
ends only with the blob here (or by cancellation), and says meanwhile how long it has been waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from shoal.base.errors import ShoalError
from shoal.base.host import Host, Peer
from shoal.base.ids import BlobId, NodeId
from shoal.node.link import ControlLink
from shoal.replica.blobs import BlobStore
from shoal.replica.swarm import Swarm
from shoal.runlog.entries import Claim
from shoal.runlog.statements import open_receipt
from shoal.runlog.view import RunView, Step, Update
from shoal.wire.signed import Signed

RETRY_S = 1.0
FETCHES_AT_ONCE = 8
Waiting = Callable[[BlobId, float], None]
"""Told, again and again, which blob cannot be had and for how many seconds."""


class Supply:
    """One run's blobs, between this disk and the peers that the link knows."""

    def __init__(self, host: Host, blobs: BlobStore, swarm: Swarm, link: ControlLink) -> None:
        self._host = host
        self._blobs = blobs
        self._swarm = swarm
        self._link = link
        self._pushing = asyncio.Lock()

    async def fetch(
        self,
        blob: BlobId,
        size_bytes: int | None,
        holders: tuple[NodeId, ...] = (),
        waiting: Waiting = lambda blob, seconds: None,
    ) -> None:
        """Bring a blob here, however long it takes; say so when it takes long."""
        began, wait = self._host.clock.now(), RETRY_S / 4
        while await self._swarm.fetch(blob, size_bytes, self._link.sources(holders)) is None:
            await self._host.clock.sleep(wait)
            wait = min(wait * 2, RETRY_S * 2)
            waiting(blob, self._host.clock.now() - began)

    async def read(
        self,
        blob: BlobId,
        size_bytes: int | None,
        holders: tuple[NodeId, ...] = (),
        waiting: Waiting = lambda blob, seconds: None,
    ) -> bytes:
        """A blob's bytes, fetched if need be: a file that has rotted is set aside by reading it, and fetched anew."""
        while True:
            await self.fetch(blob, size_bytes, holders, waiting)
            try:
                return await self._host.work(partial(self._blobs.get, blob))
            except FileNotFoundError:
                continue  # Pruned in between.
            except ShoalError as error:
                if error.code != "SH-BLOB-02":
                    raise

    async def fetch_updates(self, step: Step, waiting: Waiting) -> None:
        """All that a step's state is made of, several blobs at a time."""
        slots = asyncio.Semaphore(FETCHES_AT_ONCE)

        async def one(blob: BlobId, size_bytes: int, holders: tuple[NodeId, ...]) -> None:
            async with slots:
                await self.fetch(blob, size_bytes, holders, waiting)

        async with asyncio.TaskGroup() as tasks:
            for blob, size_bytes, holders in step.sources:
                tasks.create_task(one(blob, size_bytes, holders), name=f"fetch update {blob[:8]}")

    async def try_update(self, update: Update) -> bytes | None:
        """An update that one can do without: asked for once of everybody, and None if nobody gives it."""
        claim = update.claim
        sources = self._link.sources((*update.holders, claim.node))
        await self._swarm.fetch(claim.blob, claim.size_bytes, sources)
        try:
            return await self._host.work(partial(self._blobs.get, claim.blob))
        except (FileNotFoundError, ShoalError):
            return None

    async def fetch_parts(
        self, step: Step, numbers: Sequence[int], waiting: Waiting
    ) -> dict[int, list[bytes | None]]:
        """By shard, its part of each update of a seal, None where an update has no such part; nothing is stored."""
        slots = asyncio.Semaphore(FETCHES_AT_ONCE)
        wanted = {number: step.shards[number].most_bytes for number in numbers}

        async def one(update: Update) -> list[bytes | None]:
            claim, began = update.claim, self._host.clock.now()
            likely = (*update.holders, claim.node)
            while True:
                async with slots:
                    peers = self._link.sources(likely)
                    few = [peer for peer in peers[:-1] if peer.node in likely] + peers[-1:]
                    for asked in (few, peers):  # Hardly anybody else has it whole.
                        parts = await self._swarm.fetch_parts(claim.blob, len(step.shards), wanted, asked)
                        if parts is not None:
                            return parts
                await self._host.clock.sleep(RETRY_S)
                waiting(claim.blob, self._host.clock.now() - began)

        if not wanted:
            return {}
        async with asyncio.TaskGroup() as tasks:
            found = [tasks.create_task(one(update), name="fetch parts") for update in step.folded]
        rows = [task.result() for task in found]
        return {number: [row[place] for row in rows] for place, number in enumerate(wanted)}

    async def share(self, blobs: Sequence[BlobId]) -> None:
        """Have some other hold each of these, peers first, the coordinator as last resort; if anybody will."""
        *others, coordinator = self._link.sources()
        self._host.random.shuffle(others)
        for blob in blobs:
            for peer in self._swarm.order([*others, coordinator]):
                if await self._swarm.push(blob, peer) is not None:
                    break

    async def publish(
        self, claim: Claim, view: RunView, wanted: int, *, to_coordinator: bool
    ) -> tuple[Signed, ...]:
        """Push an update to as many others as must hold it, peers first, the coordinator as last resort; receipts."""
        *others, coordinator = self._link.sources()
        self._host.random.shuffle(others)
        receipts: list[Signed] = []
        for peer in self._swarm.order([*others, coordinator]):
            if len(receipts) < wanted or (peer is coordinator and to_coordinator):
                receipt = await self._swarm.push(claim.blob, peer, partial(_vouches, view, claim, peer))
                receipts += [receipt] if receipt is not None else []
        if not receipts:
            await self._host.clock.sleep(RETRY_S)
        return tuple(receipts)

    async def push_to_coordinator(self, blob: BlobId) -> None:
        """Give the coordinator a blob it asked for; one at a time, however often it asks."""
        if not self._pushing.locked():
            async with self._pushing:
                await self._swarm.push(blob, self._link.sources()[-1])


def _vouches(view: RunView, claim: Claim, peer: Peer, signed: Signed) -> bool:
    """True if this is the peer's receipt for just this update."""
    receipt = open_receipt(view, signed)
    wanted = (peer.node, claim.blob, claim.size_bytes)
    return receipt is not None and (receipt.holder, receipt.blob, receipt.size_bytes) == wanted
