"""What a process offers its peers: blobs by range, entries of the log, and room for others' blobs.

In flow paths and bodies from strangers; out flow ranges and signed storage receipts. Invariant: a receipt is
given only for a blob that is complete, verified and durable here; nobody can store more than the quota, and an
announcement alone takes no room from anybody.

Every path begins with the run's id; below that:

    get blobs/ID            a range of the blob
    get blobs/ID/chunks     its chunk list
    get log/POSITION        an entry of the run's log, as signed
    get proof               what this process has against the coordinator; empty if nothing
    put blobs/ID/chunks     announce a blob: the reply lists the missing chunks, or is the receipt
    put blobs/ID/INDEX      one chunk: the reply is empty, or the receipt when it was the last
    put blobs/ID/at/OFFSET/SIZE     a range of a small blob, unannounced: the receipt once all of it is here
    put proof               two entries signed for one position: from anybody, since it speaks for itself
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from shoal.base.host import Refused
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.replica.assembling import Assembling
from shoal.replica.blobs import BlobStore, chunk_list, is_blob_id, read_chunk_list
from shoal.runlog.entries import Receipt
from shoal.runlog.evidence import Evidence
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, sign

MAX_LIST_BYTES = 4 << 20
MAX_BLOB_BYTES = 1 << 30
ARRIVALS_PER_SENDER = 4
MAX_ARRIVALS = 48


class PutReply(msgspec.Struct, frozen=True, array_like=True):
    """Which chunks are still missing; once none is, the storage receipt."""

    missing: tuple[int, ...]
    receipt: Signed | None = None


class Arrivals:
    """Which unfinished blobs each sender is bringing: a few each, some dozens in all, the quietest dropped first."""

    def __init__(self, abandon: Callable[[BlobId], None]) -> None:
        self._abandon = abandon
        self._lock = threading.Lock()
        self._by_sender: dict[NodeId, dict[BlobId, None]] = {}  # Both from the quietest to the latest.

    def announced(self, sender: NodeId, blob: BlobId) -> None:
        """Make room for one more. The sender with the most gives way, so many cannot push out one."""
        with self._lock:
            self._touch(sender, blob)
            if len(self._by_sender[sender]) > ARRIVALS_PER_SENDER:
                self._drop_of(sender)
            if sum(map(len, self._by_sender.values())) > MAX_ARRIVALS:
                self._drop_of(max(self._by_sender, key=lambda node: len(self._by_sender[node])))

    def moved(self, sender: NodeId, blob: BlobId) -> None:
        with self._lock:
            if blob in self._by_sender.get(sender, ()):
                self._touch(sender, blob)

    def finished(self, blob: BlobId) -> None:
        with self._lock:
            for sender in list(self._by_sender):
                self._forget(sender, blob)

    def _touch(self, sender: NodeId, blob: BlobId) -> None:
        mine = self._by_sender.pop(sender, {})
        mine.pop(blob, None)
        mine[blob] = None
        self._by_sender[sender] = mine

    def _drop_of(self, sender: NodeId) -> None:
        blob = next(iter(self._by_sender[sender]))
        self._forget(sender, blob)
        if not any(blob in others for others in self._by_sender.values()):
            self._abandon(blob)

    def _forget(self, sender: NodeId, blob: BlobId) -> None:
        self._by_sender[sender].pop(blob, None)
        if not self._by_sender[sender]:
            del self._by_sender[sender]


class RunResources:
    """One run's blobs, log and evidence: members may store, whoever knows the run's id may read and accuse."""

    def __init__(
        self,
        *,
        run: RunId,
        identity: Identity,
        blobs: BlobStore,
        read_entry: Callable[[int], bytes | None],
        is_member: Callable[[NodeId], bool],
        evidence: Evidence,
        quota_bytes: int,
        max_blob_bytes: int = MAX_BLOB_BYTES,
    ) -> None:
        self._run = run
        self._identity = identity
        self._blobs = blobs
        self._read_entry = read_entry
        self._is_member = is_member
        self._evidence = evidence
        self.quota_bytes = quota_bytes
        """How much may be stored here in all; may be changed while serving."""
        self.max_blob_bytes = max_blob_bytes
        """How large a blob others may push here; may be changed while serving."""
        self._arrivals = Arrivals(blobs.abandon)
        self._assembling = Assembling()
        self._lock = threading.Lock()
        self._landing_bytes = 0
        """Chunks that were let in and are not in the store's count yet."""

    def get(self, path: str, start: int, stop: int | None) -> bytes | None:
        if start < 0 or (stop is not None and stop < start):
            return None
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
            case ["proof"]:
                return self._evidence.encoded[start:stop]
        return None

    def put(self, path: str, body: bytes, sender: NodeId) -> bytes:
        if path == "proof":
            return self._take_proof(body)
        if self._evidence.proof is not None:
            raise Refused("SH-LOG-02: the run's coordinator signed two different entries for one position")
        if not self._is_member(sender):
            raise Refused(f"{sender[:12]} is not a member of this run")
        match path.split("/"):
            case ["blobs", name, "chunks"] if is_blob_id(name):
                return msgspec.msgpack.encode(self._announce(BlobId(name), body, sender))
            case ["blobs", name, index] if is_blob_id(name) and index.isdecimal() and len(index) < 8:
                return msgspec.msgpack.encode(self._take(BlobId(name), int(index), body, sender))
            case ["blobs", name, "at", *place] if is_blob_id(name) and _are_numbers(place):
                offset, size_bytes = map(int, place)
                return msgspec.msgpack.encode(self._gather(BlobId(name), offset, size_bytes, body, sender))
        raise Refused("no such resource")

    def _take_proof(self, body: bytes) -> bytes:
        if not self._evidence.take(body):
            raise Refused("this proves nothing against the run's coordinator")
        return b""

    def receipt(self, blob: BlobId) -> Signed:
        """This process's promise for a blob it holds."""
        size_bytes = self._blobs.size(blob) or 0
        receipt = Receipt(run=self._run, holder=self._identity.node, blob=blob, size_bytes=size_bytes)
        return sign(self._identity, receipt)

    def _announce(self, blob: BlobId, body: bytes, sender: NodeId) -> PutReply:
        chunks = read_chunk_list(body, blob)
        if chunks is None:
            raise Refused("the chunk list is not this blob's")
        if self._blobs.has(blob):
            return self._completed(blob)
        if chunks.size_bytes > self.max_blob_bytes:
            raise Refused(f"a blob here may have {self.max_blob_bytes} bytes, not {chunks.size_bytes}")
        with self._lock:
            # Only asked: what is announced and never sent must not keep others out.
            self._require_room(chunks.size_bytes - self._blobs.arrived_bytes(blob))
        self._arrivals.announced(sender, blob)
        missing = self._blobs.begin(chunks)
        return PutReply(missing) if missing else self._completed(blob)

    def _take(self, blob: BlobId, index: int, body: bytes, sender: NodeId) -> PutReply:
        self._arrivals.moved(sender, blob)
        if not self._blobs.has(blob):
            with self._room(len(body)):
                taken = self._blobs.add(blob, index, body)
            if not taken:
                raise Refused(f"chunk {index} is not the announced one")
        return self._completed(blob)

    def _gather(self, blob: BlobId, offset: int, size_bytes: int, body: bytes, sender: NodeId) -> PutReply:
        if self._blobs.has(blob):
            return PutReply((), self.receipt(blob))
        if size_bytes > self.max_blob_bytes:
            raise Refused(f"a blob here may have {self.max_blob_bytes} bytes, not {size_bytes}")
        try:
            whole = self._assembling.take(sender, blob, offset, size_bytes, body)
        except ValueError as error:
            raise Refused(str(error)) from None
        if whole is None:
            return PutReply(())
        if chunk_list(whole).blob != blob:
            raise Refused("these bytes are not the blob")
        with self._room(size_bytes):
            self._blobs.put(whole)
        return PutReply((), self.receipt(blob))

    def _completed(self, blob: BlobId) -> PutReply:
        if not self._blobs.finish(blob):
            return PutReply(())
        self._arrivals.finished(blob)
        return PutReply((), self.receipt(blob))

    @contextmanager
    def _room(self, size_bytes: int) -> Iterator[None]:
        """Room for this much while it is being written. Raises `Refused` if there is none."""
        with self._lock:
            self._require_room(size_bytes)
            self._landing_bytes += size_bytes
        try:
            yield
        finally:
            with self._lock:
                self._landing_bytes -= size_bytes

    def _require_room(self, size_bytes: int) -> None:
        if self._blobs.used_bytes() + self._landing_bytes + size_bytes > self.quota_bytes:
            raise Refused(f"no room: the disk quota of {self.quota_bytes} bytes is used up")


def _are_numbers(place: list[str]) -> bool:
    return len(place) == 2 and all(part.isdecimal() and len(part) < 12 for part in place)


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
