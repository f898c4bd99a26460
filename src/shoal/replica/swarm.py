"""Moving a run's blobs between peers: fetch from several at once, push to the few that must hold a copy.

In flow blob ids and peers; out flow verified blobs on this disk and storage receipts from others. Invariant: a
wrong, slow or silent peer costs its place in a transfer, never the transfer; what has arrived stays and is not
fetched twice.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import blake3

from shoal.base.disk import Buffer
from shoal.base.errors import ChannelClosed
from shoal.base.host import Host, Peer, Refused
from shoal.base.ids import BlobId, RunId
from shoal.replica.asking import PATIENTLY, Asking
from shoal.replica.assembling import WHOLE_BYTES
from shoal.replica.blobs import (
    CHUNK_BYTES,
    BlobStore,
    ChunkList,
    chunk_list,
    is_blob_id,
    read_chunk_list,
)
from shoal.replica.serving import MAX_LIST_BYTES, PutReply
from shoal.replica.transfer import TINY_BYTES, Lines, Transfer, TransferReport
from shoal.wire.signed import Signed, parse

SLOWEST_PUSH_BYTES_S = 32_000
PUSH_LINES = 8
LEAST_RANGE_BYTES = 48 << 10
"""A small blob is pushed in so many ranges at once, none smaller: on a long or lossy way each connection is slow."""


def _anything(_: Signed) -> bool:
    return True


class Swarm:
    """One run's blobs on this disk and on its peers'.

    `timeout_s` is what a chunk of 1 MiB may take at first; every other wait follows from it: small requests get a
    fifth, a line that proves slow up to six times as much, and the last resort joins after a tenth.
    """

    def __init__(self, host: Host, store: BlobStore, run: RunId, *, timeout_s: float = 20.0) -> None:
        self._host = host
        self._store = store
        self._run = run
        self._timeout_s = timeout_s
        self._lines = Lines(host, timeout_s)

    def order(self, peers: Sequence[Peer]) -> list[Peer]:
        """The same peers, those that failed lately after the others; the last one stays the last."""
        return [*sorted(peers[:-1], key=lambda peer: self._lines.is_unwell(peer.node)), *peers[-1:]]

    async def fetch(
        self,
        blob: BlobId,
        size_bytes: int | None,
        peers: Sequence[Peer],
        *,
        max_bytes: int | None = None,
        asking: Asking = PATIENTLY,
    ) -> TransferReport | None:
        """Bring a blob onto this disk; the last peer is the last resort. `size_bytes` is a hint: a wrong one costs
        a request. None if they could not give it, or it has more than `max_bytes`: call again, what arrived is
        kept."""
        if not is_blob_id(blob):
            return None
        if self._store.has(blob):
            return TransferReport()
        peers = self.order(peers)
        most_bytes = math.inf if max_bytes is None else max_bytes
        small = None
        if size_bytes is not None and 0 <= size_bytes <= min(CHUNK_BYTES, most_bytes):
            small = await self._fetch_small(blob, size_bytes, peers, asking)
            if self._store.has(blob):
                return small
            if not small.wrong:
                return None
        found = await self._find_list(blob, peers, asking)
        if found is None or found[0].size_bytes > most_bytes:
            return None
        chunks, report = found
        if small is not None and size_bytes is not None and size_bytes >= chunks.size_bytes:
            report.wrong |= small.wrong  # The hint was good, so their bytes were not.
        return await self._fetch_chunks(chunks, peers, report, asking)

    async def fetch_parts(
        self,
        blob: BlobId,
        count: int,
        wanted: Mapping[int, int],
        peers: Sequence[Peer],
        asking: Asking = PATIENTLY,
    ) -> list[bytes | None] | None:
        """Some parts of a blob that should have `count`, each with the most bytes that it may have; from this disk if
        it is here, else only these from others. None for one that is too long, and for all if the blob has another
        number of them, which everybody finds alike; None for the whole if it cannot be had now."""
        if not is_blob_id(blob):
            return [None] * len(wanted)
        chunks = await self._host.work(lambda: self._store.chunks(blob))
        if chunks is None:
            found = await self._find_list(blob, self.order(peers), asking)
            if found is None:
                return None
            chunks = found[0]
        if len(chunks.parts) != count + 1:
            return [None] * len(wanted)
        fit = [part for part, most in wanted.items() if chunks.parts[part + 1] <= most]
        numbers = [n for p in fit for n in chunks.chunks_of(p + 1)]
        pieces = await self._fetch_pieces(chunks, numbers, peers, asking)
        if pieces is None:
            return None
        whole = {part: b"".join(pieces[n] for n in chunks.chunks_of(part + 1)) for part in fit}
        return [whole.get(part) for part in wanted]

    async def _fetch_pieces(
        self, chunks: ChunkList, wanted: Sequence[int], peers: Sequence[Peer], asking: Asking
    ) -> dict[int, bytes] | None:
        """These chunks of a blob, checked, from this disk or from others, and not stored."""
        pieces: dict[int, bytes] = {}
        blob = chunks.blob

        async def accept(index: int, data: bytes) -> bool:
            good = blake3.blake3(data).digest() == chunks.hashes[index]
            if good:
                pieces[index] = data
            return good

        for index in wanted:
            data = await self._host.work(partial(self._store.read, blob, *chunks.span(index)))
            if data is None or not await accept(index, data):
                break
        spans = {index: chunks.span(index) for index in wanted if index not in pieces}
        if spans:
            transfer = self._transfer(f"blobs/{blob}", spans, accept, asking)
            await transfer.run(self.order(peers))
        return pieces if len(pieces) == len(set(wanted)) else None

    async def push(
        self, blob: BlobId, peer: Peer, accepts: Callable[[Signed], bool] = _anything
    ) -> Signed | None:
        """Give a blob to a peer; its storage receipt, or None if it would not or could not take it, or if `accepts`
        does not hold for the receipt."""
        chunks = await self._host.work(lambda: self._store.chunks(blob))
        if chunks is None:
            return None
        most_s = self._timeout_s / 2 + chunks.size_bytes / SLOWEST_PUSH_BYTES_S
        try:
            async with asyncio.timeout(min(most_s, 30 * self._timeout_s)):
                push = self._push_at_once if 0 < chunks.size_bytes <= WHOLE_BYTES else self._push
                receipt = await push(chunks, peer)
        except Refused:
            return None
        except (ChannelClosed, TimeoutError):
            self._lines.failed(peer.node)
            return None
        if receipt is not None and not accepts(receipt):
            self._lines.failed(peer.node)
            return None
        return receipt

    async def _push_at_once(self, chunks: ChunkList, peer: Peer) -> Signed | None:
        """All of a small blob, unannounced and side by side: the receipt is back after one round trip."""
        blob, size_bytes = chunks.blob, chunks.size_bytes
        data = await self._host.work(partial(self._store.read, blob, 0, size_bytes))
        if data is None:
            return None
        parts = max(1, min(PUSH_LINES, size_bytes // LEAST_RANGE_BYTES))
        step = -(-size_bytes // parts)

        async def one(offset: int) -> Signed | None:
            path = f"blobs/{blob}/at/{offset}/{size_bytes}"
            return (await self._put(peer, path, data[offset : offset + step])).receipt

        try:
            async with asyncio.TaskGroup() as tasks:
                puts = [
                    tasks.create_task(one(offset), name="put a range")
                    for offset in range(0, size_bytes, step)
                ]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return next((receipt for put in puts if (receipt := put.result()) is not None), None)

    async def _push(self, chunks: ChunkList, peer: Peer) -> Signed | None:
        blob = chunks.blob
        reply = await self._put(peer, f"blobs/{blob}/chunks", chunks.encode())
        wanted = reply.missing
        if len(set(wanted)) != len(wanted) or not all(0 <= i < len(chunks.hashes) for i in wanted):
            raise ChannelClosed(f"{peer.node[:12]} asks for chunks that are not there")
        for index in wanted:
            data = await self._host.work(partial(self._store.read, blob, *chunks.span(index)))
            if data is None:
                return None
            reply = await self._put(peer, f"blobs/{blob}/{index}", data)
        return reply.receipt

    async def _put(self, peer: Peer, path: str, body: bytes) -> PutReply:
        timeout_s = self._timeout_s / 5 + len(body) / SLOWEST_PUSH_BYTES_S
        reply = parse(await self._host.put(peer, f"{self._run}/{path}", body, timeout_s=timeout_s), PutReply)
        if reply is None:
            raise ChannelClosed(f"{peer.node[:12]} sent a garbled reply")
        return reply

    def _transfer(
        self,
        path: str,
        spans: dict[int, tuple[int, int]],
        accept: Callable[[int, bytes], Awaitable[bool]],
        asking: Asking,
        take: Callable[[int, Buffer], bool] | None = None,
    ) -> Transfer:
        return Transfer(self._lines, f"{self._run}/{path}", spans, accept, take, asking)

    async def _fetch_small(
        self, blob: BlobId, size_bytes: int, peers: Sequence[Peer], asking: Asking
    ) -> TransferReport:
        async def accept(_: int, data: bytes) -> bool:
            chunks = chunk_list(data)
            if chunks.blob != blob:
                return False
            await self._host.work(partial(self._store.put, data, chunks))
            return True

        report, began = TransferReport(), self._lines.now()
        tiny = size_bytes <= TINY_BYTES and not asking.at_once
        first = peers[0] if len(peers) > 1 and tiny else None
        if first is not None and not self._lines.is_unwell(first.node):
            data = await self._lines.get_at_once(first, f"{self._run}/blobs/{blob}", size_bytes)
            if data is not None and await accept(0, data):
                return TransferReport(from_peers={first.node: len(data)})
            if data is not None:
                report.wrong[first.node] = "sent wrong bytes"
                self._lines.failed(first.node)
            peers = [*peers[1:-1], *([first] if data is None else []), *peers[-1:]]
            if self._lines.now() - began >= self._lines.late_s:
                asking = replace(asking, at_once=True)
        transfer = self._transfer(f"blobs/{blob}", {0: (0, size_bytes)}, accept, asking)
        await transfer.run(peers)
        transfer.report.wrong |= report.wrong
        return transfer.report

    async def _find_list(
        self, blob: BlobId, peers: Sequence[Peer], asking: Asking
    ) -> tuple[ChunkList, TransferReport] | None:
        found: list[ChunkList] = []

        async def accept(_: int, data: bytes) -> bool:
            chunks = read_chunk_list(data, blob)
            found.extend([chunks] if chunks else [])
            return chunks is not None

        transfer = self._transfer(f"blobs/{blob}/chunks", {0: (0, MAX_LIST_BYTES)}, accept, asking)
        await transfer.run(peers)
        return (found[0], TransferReport(wrong=transfer.report.wrong)) if found else None

    def _expect(self, chunks: ChunkList) -> tuple[int, ...]:
        missing = self._store.begin(chunks)
        self._store.make_room(chunks.blob)
        return missing

    async def _fetch_chunks(
        self, chunks: ChunkList, peers: Sequence[Peer], report: TransferReport, asking: Asking
    ) -> TransferReport | None:
        blob = chunks.blob
        take = partial(self._store.add, blob)

        async def accept(index: int, data: bytes) -> bool:
            return await self._host.work(partial(take, index, data))

        with self._store.held(blob):
            missing = await self._host.work(lambda: self._expect(chunks))
            # Start at different places, so that fetchers of one blob soon have different chunks to give each other.
            turn = self._host.random.randrange(len(missing)) if missing else 0
            spans = {index: chunks.span(index) for index in missing[turn:] + missing[:turn]}
            transfer = self._transfer(f"blobs/{blob}", spans, accept, asking, take)
            await transfer.run([peer for peer in peers if peer.node not in report.wrong])
            done = await self._host.work(lambda: self._store.finish(blob))
        report.from_peers |= transfer.report.from_peers
        report.wrong |= transfer.report.wrong
        return report if done else None
