"""An update that leaves once, in coded pieces: each placed with another peer, and put together by everyone.

In flow a claim with its pieces' names; out flow receipts for pieces, or the whole update on this disk. Invariant: a
piece is known by the hash in its author's claim, and what pieces give is kept only if it is the claimed blob; so a
wrong piece costs its sender, and a wrong code its author, but nobody the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from shoal.base.errors import ShoalError
from shoal.base.host import Host, Peer
from shoal.base.ids import BlobId, NodeId
from shoal.node.spreading import Spreading
from shoal.replica.asking import BRIEFLY
from shoal.replica.blobs import BlobStore, chunk_list
from shoal.replica.pieces import join_pieces
from shoal.replica.swarm import Swarm
from shoal.runlog.entries import Claim
from shoal.runlog.pieces import piece_bytes
from shoal.runlog.view import Update
from shoal.wire.signed import Signed

PATIENCE_S = 1.0
"""How long a peer may take with a piece before another is given it as well."""
Vouches = Callable[[BlobId, int, Peer, Signed], bool]
"""Whether this is the peer's receipt for a blob of this size."""
Sources = Callable[[tuple[NodeId, ...]], list[Peer]]


class Placing:
    """The pieces of one update on their way to as many peers."""

    def __init__(self, host: Host, swarm: Swarm, claim: Claim) -> None:
        self._size = piece_bytes(claim)
        self._news = asyncio.Event()
        self._spreads = {piece: Spreading(host, swarm, piece, self._size) for piece in claim.pieces}

    async def place(self, peers: Sequence[Peer]) -> None:
        """Give every piece to one peer: the first to the first, and so on in turn; to the next one if it fails."""
        async with asyncio.TaskGroup() as tasks:
            for number, spreading in enumerate(self._spreads.values()):
                turn = number % len(peers)
                tasks.create_task(self._one(spreading, [*peers[turn:], *peers[:turn]]), name="place a piece")

    async def _one(self, spreading: Spreading, peers: Sequence[Peer]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for peer in peers:
                tasks.create_task(spreading.push(peer), name=f"push a piece to {peer.node[:8]}")
                await asyncio.sleep(0)
                await spreading.until(lambda: bool(spreading.receipts(_any)), PATIENCE_S)
                if spreading.receipts(_any):
                    break
        self.tell()

    def tell(self) -> None:
        """Something has changed: whoever waits looks again."""
        self._news.set()
        self._news = asyncio.Event()

    def receipts(self, vouches: Vouches) -> tuple[Signed, ...]:
        """One for each piece that is held."""
        spreads = self._spreads.items()
        found = (spread.receipts(partial(vouches, piece, self._size)) for piece, spread in spreads)
        return tuple(held[0][1] for held in found if held)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for receipts until something holds."""
        while not holds():
            await self._news.wait()


class Gathering:
    """Updates put together from their pieces, onto this disk."""

    def __init__(self, host: Host, blobs: BlobStore, swarm: Swarm, sources: Sources) -> None:
        self._host, self._blobs, self._swarm, self._sources = host, blobs, swarm, sources

    async def gather(self, update: Update) -> bool:
        """Bring as many pieces as it takes and put them together; False if they cannot be had, or are no good."""
        claim = update.claim
        holder = dict(update.pieces)
        numbers = sorted(
            range(len(claim.pieces)), key=lambda n: (not self._blobs.has(claim.pieces[n]), n not in holder)
        )
        found: dict[int, bytes] = {}
        while numbers and len(found) < claim.pieces_needed:
            some, numbers = _split(numbers, claim.pieces_needed - len(found))
            async with asyncio.TaskGroup() as tasks:
                asked = {
                    n: tasks.create_task(self._bring(claim, n, holder.get(n)), name="piece") for n in some
                }
            found |= {number: data for number, task in asked.items() if (data := task.result()) is not None}
        if len(found) < claim.pieces_needed:
            return False
        return await self._host.work(partial(self._join, claim, found))

    async def _bring(self, claim: Claim, number: int, holder: NodeId | None) -> bytes | None:
        piece, size = claim.pieces[number], piece_bytes(claim)
        peers = self._sources((holder,) if holder is not None else (claim.node,))
        if await self._swarm.fetch(piece, size, peers, max_bytes=size, asking=BRIEFLY) is None:
            return None
        try:
            return await self._host.work(partial(self._blobs.get, piece))
        except (FileNotFoundError, ShoalError):
            return None

    def _join(self, claim: Claim, found: dict[int, bytes]) -> bool:
        try:
            data = join_pieces(found, claim.pieces_needed, len(claim.pieces), claim.size_bytes)
        except ValueError:
            return False
        if chunk_list(data).blob != claim.blob:
            return False  # The author cut something else than it claimed: only it can give the update itself.
        self._blobs.put(data)
        return True


def _any(_: Peer, __: Signed) -> bool:
    return True


def _split(numbers: list[int], count: int) -> tuple[list[int], list[int]]:
    return numbers[:count], numbers[count:]
