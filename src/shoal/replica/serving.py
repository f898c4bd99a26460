"""What a process offers its peers: blobs by range, entries of the log, and room for others' blobs.

In flow paths and bodies from strangers; out flow ranges and signed storage receipts. Invariant: a receipt is
given only for a blob that is complete, verified and durable here; nobody can store more than the quota.

Every path begins with the run's id; below that:

    get blobs/ID            a range of the blob
    get blobs/ID/chunks     its chunk list
    get log/POSITION        an entry of the run's log, as signed
    put blobs/ID/chunks     announce a blob: the reply lists the missing chunks, or is the receipt
    put blobs/ID/INDEX      one chunk: the reply is empty, or the receipt when it was the last
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from shoal.base.host import Refused
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.replica.blobs import BlobStore, ChunkList, is_blob_id, read_chunk_list
from shoal.runlog.entries import Receipt
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, sign

MAX_LIST_BYTES = 4 << 20


class PutReply(msgspec.Struct, frozen=True, array_like=True):
    """Which chunks are still missing; once none is, the storage receipt."""

    missing: tuple[int, ...]
    receipt: Signed | None = None


class RunResources:
    """One run's blobs and log, served to its members."""

    def __init__(
        self,
        *,
        run: RunId,
        identity: Identity,
        blobs: BlobStore,
        read_entry: Callable[[int], bytes | None],
        is_member: Callable[[NodeId], bool],
        quota_bytes: int,
    ) -> None:
        self._run = run
        self._identity = identity
        self._blobs = blobs
        self._read_entry = read_entry
        self._is_member = is_member
        self.quota_bytes = quota_bytes
        """How much may be stored here in all; may be changed while serving."""
        self._promised: dict[BlobId, int] = {}
        self._lock = threading.Lock()

    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        match path.split("/"):
            case ["blobs", name] if is_blob_id(name):
                end = self._blobs.size(BlobId(name)) if stop is None else stop
                return None if end is None else self._blobs.read(BlobId(name), start, end)
            case ["blobs", name, "chunks"] if is_blob_id(name):
                chunks = self._blobs.chunks(BlobId(name))
                return chunks.encode()[start:stop] if chunks else None
            case ["log", position] if position.isdecimal() and len(position) < 12:
                entry = self._read_entry(int(position))
                return entry[start:stop] if entry else None
        return None

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        if not self._is_member(sender):
            raise Refused(f"{sender[:12]} is not a member of this run")
        match path.split("/"):
            case ["blobs", name, "chunks"] if is_blob_id(name):
                return msgspec.msgpack.encode(self._announce(BlobId(name), body))
            case ["blobs", name, index] if is_blob_id(name) and index.isdecimal() and len(index) < 8:
                return msgspec.msgpack.encode(self._take(BlobId(name), int(index), body))
        raise Refused("no such resource")

    def receipt(self, blob: BlobId) -> Signed:
        """This process's promise for a blob it holds."""
        return sign(self._identity, Receipt(run=self._run, holder=self._identity.node, blob=blob))

    def _announce(self, blob: BlobId, body: bytes) -> PutReply:
        chunks = read_chunk_list(body, blob)
        if chunks is None:
            raise Refused("the chunk list is not this blob's")
        self._reserve(blob, chunks)
        missing = self._blobs.begin(chunks)
        return PutReply(missing) if missing else self._completed(blob)

    def _take(self, blob: BlobId, index: int, body: bytes) -> PutReply:
        if not self._blobs.add(blob, index, body):
            raise Refused(f"chunk {index} is not the announced one")
        return self._completed(blob)

    def _completed(self, blob: BlobId) -> PutReply:
        if not self._blobs.finish(blob):
            return PutReply(())
        with self._lock:
            self._promised.pop(blob, None)
        return PutReply((), self.receipt(blob))

    def _reserve(self, blob: BlobId, chunks: ChunkList) -> None:
        if self._blobs.has(blob):
            return
        with self._lock:
            others = sum(size for other, size in self._promised.items() if other != blob)
            if self._blobs.used_bytes() + others + chunks.size_bytes > self.quota_bytes:
                raise Refused(f"no room: the disk quota of {self.quota_bytes} bytes is used up")
            self._promised[blob] = chunks.size_bytes


class ResourcesByRun:
    """Several runs' resources behind one address; the first part of a path names the run."""

    def __init__(self, runs: dict[RunId, RunResources] | None = None) -> None:
        self.runs: dict[RunId, RunResources] = runs or {}

    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        run, _, rest = path.partition("/")
        resources = self.runs.get(RunId(run))
        return resources.get(rest, start, stop) if resources else None

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        run, _, rest = path.partition("/")
        resources = self.runs.get(RunId(run))
        if resources is None:
            raise Refused("no such run here")
        return resources.put(rest, body, sender)
