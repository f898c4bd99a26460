"""Blobs in and out of this node: fetched however long it takes, pushed to those who must hold them.

In flow blob ids with who should have them; out flow blobs on this disk, and receipts of others. Invariant: a fetch
ends only with the blob here (or by cancellation), and says meanwhile how long it has been waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from shoal.base.errors import ShoalError
from shoal.base.host import Host, Peer
from shoal.base.ids import BlobId, NodeId
from shoal.node.link import ControlLink
from shoal.node.pieces import Gathering, Placing
from shoal.node.spreading import STAGGER_S, Spreading
from shoal.replica.asking import BRIEFLY, SEARCHING
from shoal.replica.blobs import BlobStore
from shoal.replica.swarm import Swarm
from shoal.runlog.entries import Claim
from shoal.runlog.statements import open_receipt
from shoal.runlog.view import RunView, Step, Update
from shoal.wire.signed import Signed

RETRY_S = 1.0
FETCHES_AT_ONCE = 8
PATIENCE_S = 1.0
"""How long a receipt is waited for before another peer is asked for one as well."""
EAGER_PEERS = 4
"""With no more peers than this everyone is given an update at once: they would all come for it, a while later."""
SPREADS_KEPT = 4
COMING_S = 2.0
EXPECTED_S = (0.02, 0.02, 0.04, 0.04, 0.08, 0.1)
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
        self._gathering = Gathering(host, blobs, swarm, link.sources)
        self._spreads: dict[BlobId, Spreading] = {}
        self._brisk = True
        self._coming: dict[BlobId, asyncio.Event] = {}
        self.all_for_all = False
        """Whether everybody is given every update at once, see `storage.push`."""

    async def fetch(
        self,
        blob: BlobId,
        size_bytes: int | None,
        holders: tuple[NodeId, ...] = (),
        waiting: Waiting = lambda blob, seconds: None,
    ) -> None:
        """Bring a blob here, however long it takes; say so when it takes long."""
        began, wait, asking = self._host.clock.now(), RETRY_S / 4, BRIEFLY
        while await self._swarm.fetch(blob, size_bytes, self._link.sources(holders), asking=asking) is None:
            asking = SEARCHING
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

        cut = {update.claim.blob: update for update in step.folded if update.pieces}

        async def one(blob: BlobId, size_bytes: int, holders: tuple[NodeId, ...]) -> None:
            async with slots:
                if blob in cut:
                    if await self._gathering.gather(cut[blob]):
                        return
                elif blob in self._coming:
                    await self._until_come(blob)
                else:
                    await self._expect(blob)
                await self.fetch(blob, size_bytes, holders, waiting)

        async with asyncio.TaskGroup() as tasks:
            for blob, size_bytes, holders in step.sources:
                if not self._blobs.has(blob):
                    tasks.create_task(one(blob, size_bytes, holders), name=f"fetch update {blob[:8]}")

    async def fetch_ahead(self, steps: Sequence[Step]) -> None:
        """Ask once for what steps are made of whose turn will come, those of the first one first."""
        slots = asyncio.Semaphore(FETCHES_AT_ONCE)

        async def one(blob: BlobId, size_bytes: int, holders: tuple[NodeId, ...]) -> None:
            try:
                async with slots:
                    await self._swarm.fetch(blob, size_bytes, self._link.sources(holders), asking=BRIEFLY)
            finally:
                self._coming.pop(blob).set()

        async with asyncio.TaskGroup() as tasks:
            for step in steps:
                for blob, size_bytes, holders in step.sources:
                    if not self._blobs.has(blob) and blob not in self._coming:
                        self._coming[blob] = asyncio.Event()
                        tasks.create_task(one(blob, size_bytes, holders), name=f"fetch ahead {blob[:8]}")

    async def _until_come(self, blob: BlobId) -> None:
        """Wait for what was asked for ahead, but not for long: those asked then may be gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COMING_S):
                await self._coming[blob].wait()

    async def _expect(self, blob: BlobId) -> None:
        """Where everybody is given every update, what is not here yet is on its way: wait a moment, lest it come
        twice."""
        if not self.all_for_all or len(self._link.sources()) > EAGER_PEERS + 1:
            return
        for wait_s in EXPECTED_S:
            if self._blobs.has(blob):
                return
            await self._host.clock.sleep(wait_s)

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
            likely, asking = (*update.holders, claim.node), BRIEFLY
            while True:
                async with slots:
                    peers = self._link.sources(likely)
                    few = [peer for peer in peers[:-1] if peer.node in likely] + peers[-1:]
                    for asked in (few, peers):  # Hardly anybody else has it whole.
                        parts = await self._swarm.fetch_parts(
                            claim.blob, len(step.shards), wanted, asked, asking
                        )
                        if parts is not None:
                            return parts
                asking = SEARCHING
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

    async def spread(self, blob: BlobId, size_bytes: int, wanted: int) -> None:
        """Begin to push an update to those who will want it, while the rest of its claim is still being made."""
        spreading = self._spreading(blob, size_bytes)
        *others, _ = self._in_turn()
        await spreading.push_each(others[: self._eager(others, wanted)])
        self._brisk = spreading.brisk

    async def publish(
        self,
        claim: Claim,
        view: RunView,
        wanted: int,
        *,
        to_coordinator: bool,
        published: Callable[[tuple[Signed, ...]], None],
    ) -> None:
        """Push an update to as many others as must hold it, peers first, the coordinator as last resort. `published`
        is called once, with the receipts, as soon as they are enough or no more can be had; pushes go on a while."""
        *others, coordinator = self._in_turn()
        if claim.pieces and others and not to_coordinator:
            await self._publish_pieces(claim, view, others, wanted, published)
            return
        spreading = self._spreading(claim.blob, claim.size_bytes)
        spreading.forgive()
        eager = self._eager(others, wanted)

        def found() -> list[tuple[Peer, Signed]]:
            return spreading.receipts(partial(_vouches, view, claim.blob, claim.size_bytes))

        def enough() -> bool:
            held = found()
            there = not to_coordinator or any(peer.node == coordinator.node for peer, _ in held)
            return there and len(held) >= wanted

        async with asyncio.TaskGroup() as tasks:
            for peer in (*others, coordinator):
                soon = peer is not coordinator and len(spreading.asked) < eager
                if not soon and not (peer is coordinator and to_coordinator):
                    await spreading.until(lambda: len(found()) >= wanted, PATIENCE_S)
                    if len(found()) >= wanted:
                        continue
                tasks.create_task(spreading.push(peer), name=f"push to {peer.node[:8]}")
                await self._host.clock.sleep(STAGGER_S if soon and len(spreading.asked) < eager else 0)
            await spreading.until(enough, None)
            receipts = tuple(signed for _, signed in found())
            if not receipts:
                await self._host.clock.sleep(RETRY_S)
            published(receipts)
        self._brisk = spreading.brisk

    async def _publish_pieces(
        self,
        claim: Claim,
        view: RunView,
        others: Sequence[Peer],
        wanted: int,
        published: Callable[[tuple[Signed, ...]], None],
    ) -> None:
        """The same for an update in pieces: it is enough if it survives its author and `wanted - 1` of the holders."""
        placing = Placing(self._host, self._swarm, claim)
        needed = min(len(claim.pieces), claim.pieces_needed + wanted - 1)

        def found() -> tuple[Signed, ...]:
            return placing.receipts(partial(_vouches, view))

        async with asyncio.TaskGroup() as tasks:
            placed = tasks.create_task(placing.place(others), name="place pieces")
            placed.add_done_callback(lambda _: placing.tell())
            await placing.until(lambda: placed.done() or len(found()) >= needed)
            if not found():
                await self._host.clock.sleep(RETRY_S)
            published(found())

    def _in_turn(self) -> list[Peer]:
        """Peers to push to, in random order, those that failed lately after the others; the coordinator last."""
        *others, coordinator = self._link.sources()
        self._host.random.shuffle(others)
        return self._swarm.order([*others, coordinator])

    def _eager(self, others: Sequence[Peer], wanted: int) -> int:
        """How many are given an update without waiting for another's receipt."""
        eager = self.all_for_all and len(others) <= EAGER_PEERS and self._brisk
        return len(others) if eager else min(wanted, len(others))

    def _spreading(self, blob: BlobId, size_bytes: int) -> Spreading:
        if blob not in self._spreads:
            self._spreads[blob] = Spreading(self._host, self._swarm, blob, size_bytes)
            for old in list(self._spreads)[:-SPREADS_KEPT]:
                del self._spreads[old]
        return self._spreads[blob]

    async def push_to_coordinator(self, blob: BlobId) -> None:
        """Give the coordinator a blob it asked for; one at a time, however often it asks."""
        if not self._pushing.locked():
            async with self._pushing:
                await self._swarm.push(blob, self._link.sources()[-1])


def _vouches(view: RunView, blob: BlobId, size_bytes: int, peer: Peer, signed: Signed) -> bool:
    """True if this is the peer's receipt for just this blob."""
    receipt = open_receipt(view, signed)
    wanted = (peer.node, blob, size_bytes)
    return receipt is not None and (receipt.holder, receipt.blob, receipt.size_bytes) == wanted
