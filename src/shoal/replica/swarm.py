"""Moving a run's blobs between peers: fetch from several at once, push to the few that must hold a copy.

In flow blob ids and peers; out flow verified blobs on this disk and storage receipts from others. Invariant: a
wrong or missing chunk costs its sender its place in this transfer, never the transfer; what has arrived stays
and is not fetched twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from shoal.base.errors import ChannelClosed
from shoal.base.host import Host, Peer, Refused
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.replica.blobs import CHUNK_BYTES, BlobStore, ChunkList, chunk_list, read_chunk_list
from shoal.replica.serving import MAX_LIST_BYTES, PutReply
from shoal.wire.signed import Signed, parse

LANES_PER_PEER = 4
MAX_LANES = 8


@dataclass(slots=True)
class TransferReport:
    """What one fetch learned about its peers."""

    from_peers: dict[NodeId, int] = field(default_factory=dict)
    """Bytes of good chunks by sender."""
    wrong: dict[NodeId, str] = field(default_factory=dict)
    """Peers that sent something that was not the blob."""


class Swarm:
    """One run's blobs on this disk and on its peers'. `timeout_s` bounds every single request."""

    def __init__(self, host: Host, store: BlobStore, run: RunId, *, timeout_s: float) -> None:
        self._host = host
        self._store = store
        self._run = run
        self._timeout_s = timeout_s

    async def fetch(
        self, blob: BlobId, size_bytes: int | None, peers: Sequence[Peer]
    ) -> TransferReport | None:
        """Bring a blob onto this disk, its size known or not; the last peer is asked last. None if they could
        not give it: call again, what arrived is kept."""
        report = TransferReport()
        if self._store.has(blob):
            return report
        if size_bytes is not None and size_bytes <= CHUNK_BYTES:
            return await self._fetch_small(blob, size_bytes, peers, report)
        for peer in peers:
            chunks = await self._ask_list(peer, blob, size_bytes, report)
            if chunks is not None:
                return await self._fetch_chunks(chunks, peers, report)
        return None

    async def push(self, blob: BlobId, peer: Peer) -> Signed | None:
        """Give a blob to a peer; its storage receipt, or None if it would not or could not take it."""
        chunks = await self._host.work(lambda: self._store.chunks(blob))
        if chunks is None:
            return None
        try:
            reply = await self._put(peer, f"blobs/{blob}/chunks", chunks.encode())
            for index in reply.missing:
                read = partial(self._store.read, blob, *chunks.span(index))
                data = await self._host.work(read)
                reply = await self._put(peer, f"blobs/{blob}/{index}", data or b"")
        except (ChannelClosed, Refused):
            return None
        return reply.receipt

    async def _get(self, peer: Peer, path: str, start: int, stop: int) -> bytes:
        return await self._host.get(peer, f"{self._run}/{path}", start, stop, timeout_s=self._timeout_s)

    async def _put(self, peer: Peer, path: str, body: bytes) -> PutReply:
        raw = await self._host.put(peer, f"{self._run}/{path}", body, timeout_s=self._timeout_s)
        reply = parse(raw, PutReply)
        if reply is None:
            raise ChannelClosed(f"{peer.node[:12]} sent a garbled reply")
        return reply

    async def _fetch_small(
        self, blob: BlobId, size_bytes: int, peers: Sequence[Peer], report: TransferReport
    ) -> TransferReport | None:
        for peer in peers:
            try:
                data = await self._get(peer, f"blobs/{blob}", 0, size_bytes)
            except ChannelClosed:
                continue
            if chunk_list(data).blob != blob:
                report.wrong[peer.node] = "sent other bytes"
                continue
            await self._host.work(partial(self._store.put, data))
            report.from_peers[peer.node] = len(data)
            return report
        return None

    async def _ask_list(
        self, peer: Peer, blob: BlobId, size_bytes: int | None, report: TransferReport
    ) -> ChunkList | None:
        try:
            data = await self._get(peer, f"blobs/{blob}/chunks", 0, MAX_LIST_BYTES)
        except ChannelClosed:
            return None
        chunks = read_chunk_list(data, blob)
        if chunks is None or size_bytes not in (None, chunks.size_bytes):
            report.wrong[peer.node] = "sent a wrong chunk list"
            return None
        return chunks

    async def _fetch_chunks(
        self, chunks: ChunkList, peers: Sequence[Peer], report: TransferReport
    ) -> TransferReport | None:
        missing = await self._host.work(lambda: self._store.begin(chunks))
        # Start at different places, so that fetchers of one blob soon have different chunks to give each other.
        turn = self._host.random.randrange(len(missing)) if missing else 0
        todo = list(missing[turn:] + missing[:turn])
        # The last peer is the last resort (the coordinator): it is asked only for what the others leave.
        for group in (peers[:-1], peers[-1:]):
            willing = [peer for peer in group if peer.node not in report.wrong]
            if not todo or not willing:
                continue
            lanes = min(MAX_LANES, LANES_PER_PEER * len(willing), len(todo))
            async with asyncio.TaskGroup() as tasks:
                for number in range(lanes):
                    peer = willing[number % len(willing)]
                    tasks.create_task(
                        self._lane(peer, chunks, todo, report), name=f"fetch from {peer.node[:8]}"
                    )
        done = await self._host.work(lambda: self._store.finish(chunks.blob))
        return report if done else None

    async def _lane(self, peer: Peer, chunks: ChunkList, todo: list[int], report: TransferReport) -> None:
        """Fetch chunks from one peer, one after another, until none is left or the peer fails."""
        while todo:
            index = todo.pop()
            try:
                data = await self._get(peer, f"blobs/{chunks.blob}", *chunks.span(index))
            except ChannelClosed:
                todo.append(index)
                return
            if not await self._host.work(partial(self._store.add, chunks.blob, index, data)):
                report.wrong[peer.node] = f"sent a wrong chunk {index}"
                todo.append(index)
                return
            report.from_peers[peer.node] = report.from_peers.get(peer.node, 0) + len(data)
