"""Content-addressed blobs on a disk: written atomically, synced, verified, resumable, pruned.

In flow bytes, whole or chunk by chunk from strangers; out flow verified bytes. A blob's id is the root over
its size and the BLAKE3 hashes of its 1 MiB chunks. Invariant: a file under its final name is complete and was
verified when it was written; reading verifies again, so that rot is found where it matters.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import blake3

from shoal.base.disk import Buffer, Disk
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId

CHUNK_BYTES = 1 << 20
PRUNE_AFTER_ROUNDS = 2
_HASH_BYTES = 32
_BLOB_ID = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ChunkList:
    """A blob's size and chunk hashes; its root is the blob's id, so it proves itself."""

    size_bytes: int
    hashes: tuple[bytes, ...]

    @property
    def blob(self) -> BlobId:
        return BlobId(blake3.blake3(self.encode()).hexdigest())

    def encode(self) -> bytes:
        return self.size_bytes.to_bytes(8, "little") + b"".join(self.hashes)

    def span(self, index: int) -> tuple[int, int]:
        return index * CHUNK_BYTES, min((index + 1) * CHUNK_BYTES, self.size_bytes)


def chunk_list(data: Buffer) -> ChunkList:
    view = memoryview(data)
    parts = (view[i : i + CHUNK_BYTES] for i in range(0, len(view), CHUNK_BYTES))
    return ChunkList(len(view), tuple(blake3.blake3(part).digest() for part in parts))


def read_chunk_list(data: bytes, blob: BlobId) -> ChunkList | None:
    """The list in hostile bytes, or None if it is not this blob's."""
    if len(data) < 8 or (len(data) - 8) % _HASH_BYTES:
        return None
    hashes = tuple(data[i : i + _HASH_BYTES] for i in range(8, len(data), _HASH_BYTES))
    found = ChunkList(int.from_bytes(data[:8], "little"), hashes)
    right_count = len(hashes) == -(-found.size_bytes // CHUNK_BYTES)
    return found if right_count and found.blob == blob else None


def is_blob_id(text: str) -> bool:
    return _BLOB_ID.fullmatch(text) is not None


@dataclass(slots=True)
class _Arriving:
    """A blob of which some chunks are here."""

    chunks: ChunkList
    missing: set[int] = field(default_factory=set)


class BlobStore:
    """Files `blobs/ID` (and `blobs/ID.part` while arriving). Thread-safe."""

    def __init__(self, disk: Disk, reached: Callable[[str], None]) -> None:
        self._disk = disk
        self._reached = reached
        self._lock = threading.Lock()
        self._arriving: dict[BlobId, _Arriving] = {}
        self._lists: dict[BlobId, ChunkList] = {}
        self._unneeded_since: dict[str, int] = {}

    def has(self, blob: BlobId) -> bool:
        return self._disk.size(_path(blob)) is not None

    def size(self, blob: BlobId) -> int | None:
        return self._disk.size(_path(blob))

    def put(self, data: Buffer) -> BlobId:
        """Store bytes durably; their id."""
        chunks = chunk_list(data)
        blob = chunks.blob
        if not self.has(blob):
            self._disk.write(_path(blob) + ".part", data)
            self._finish(blob)
        self._lists[blob] = chunks
        return blob

    def get(self, blob: BlobId) -> bytes:
        """The whole blob, verified. Raises `FileNotFoundError`, or SH-BLOB-02 if the file has rotted; then
        the file is set aside, so that the next fetch brings a good one."""
        data = self._disk.read(_path(blob))
        chunks = chunk_list(data)
        if chunks.blob != blob:
            self._set_aside(blob)
            raise ShoalError(
                "SH-BLOB-02",
                f"the file of blob {blob[:16]} does not have the content its name says",
                "it was set aside and will be fetched again; check this disk's health",
            )
        self._lists[blob] = chunks
        return data

    def read(self, blob: BlobId, start: int, stop: int) -> bytes | None:
        """A range as it is on disk, unverified: the receiver checks it. None if the blob is not here."""
        try:
            return self._disk.read(_path(blob), start, stop)
        except FileNotFoundError:
            return None

    def chunks(self, blob: BlobId) -> ChunkList | None:
        """The chunk list of a stored blob."""
        if not self.has(blob):
            return None
        if blob not in self._lists:
            try:
                self.get(blob)
            except (ShoalError, FileNotFoundError):
                return None
        return self._lists[blob]

    # --- arriving chunk by chunk -------------------------------------------------------------------------

    def begin(self, chunks: ChunkList) -> tuple[int, ...]:
        """Expect a blob; which chunks are missing. Chunks of an earlier, broken-off attempt count."""
        blob = chunks.blob
        with self._lock:
            if self.has(blob):
                return ()
            if blob not in self._arriving:
                self._arriving[blob] = _Arriving(chunks, set(self._unsound_chunks(blob, chunks)))
            if not chunks.hashes:
                self._disk.write(_path(blob) + ".part", b"")
            return tuple(sorted(self._arriving[blob].missing))

    def add(self, blob: BlobId, index: int, data: Buffer) -> bool:
        """Take one chunk. False if it is not the chunk the list names, whoever sent it."""
        arriving = self._arriving.get(blob)
        if self.has(blob):
            return True  # Whoever brought it; a late chunk must not begin another file.
        if arriving is None or not 0 <= index < len(arriving.chunks.hashes):
            return False
        if index not in arriving.missing:
            return True
        if blake3.blake3(data).digest() != arriving.chunks.hashes[index]:
            return False
        self._disk.write_at(_path(blob) + ".part", arriving.chunks.span(index)[0], data)
        with self._lock:
            arriving.missing.discard(index)
        return True

    def finish(self, blob: BlobId) -> bool:
        """Make a complete arrival durable. False while chunks are missing."""
        with self._lock:
            if self.has(blob):
                self._arriving.pop(blob, None)
                return True
            arriving = self._arriving.get(blob)
            if arriving is None or arriving.missing:
                return False
            self._finish(blob)
            self._lists[blob] = arriving.chunks
            del self._arriving[blob]
            return True

    # --- housekeeping ------------------------------------------------------------------------------------

    def prune(self, keep: Iterable[BlobId], round_number: int, *, spare_bytes: int = 0) -> int:
        """Remove blobs that have not been in `keep` for some rounds, oldest first, until those left of them take
        no more than `spare_bytes`; how many. Not at once: an update that was pushed here may not be in the log
        yet, though it was promised."""
        wanted, removed = set(keep), 0
        unneeded = [n for n in self._disk.list("blobs") if is_blob_id(n) and n not in wanted]
        since = {name: self._unneeded_since.get(name, round_number) for name in unneeded}
        left = sum(self._disk.size(f"blobs/{name}") or 0 for name in unneeded)
        for name in sorted(unneeded, key=lambda name: (since[name], name)):
            if left <= spare_bytes or round_number - since[name] < PRUNE_AFTER_ROUNDS:
                break
            left -= self._disk.size(f"blobs/{name}") or 0
            self._disk.remove(f"blobs/{name}")
            self._lists.pop(BlobId(name), None)
            del since[name]
            removed += 1
        self._unneeded_since = since
        return removed

    def used_bytes(self) -> int:
        return sum(self._disk.size(f"blobs/{name}") or 0 for name in self._disk.list("blobs"))

    def damaged(self, blobs: Iterable[BlobId]) -> list[BlobId]:
        """Which of these are stored with content that is not theirs. Changes nothing."""
        return [b for b in blobs if self.has(b) and chunk_list(self._disk.read(_path(b))).blob != b]

    def _finish(self, blob: BlobId) -> None:
        part = _path(blob) + ".part"
        self._reached("blob.before-sync")
        self._disk.sync(part)
        self._disk.rename(part, _path(blob))
        self._reached("blob.after-rename")
        self._disk.sync_folder("blobs")

    def _set_aside(self, blob: BlobId) -> None:
        self._disk.rename(_path(blob), _path(blob) + ".rotten")

    def _unsound_chunks(self, blob: BlobId, chunks: ChunkList) -> list[int]:
        part = _path(blob) + ".part"
        if self._disk.size(part) is None:
            return list(range(len(chunks.hashes)))
        unsound = []
        for index, expected in enumerate(chunks.hashes):
            if blake3.blake3(self._disk.read(part, *chunks.span(index))).digest() != expected:
                unsound.append(index)
        return unsound


def _path(blob: BlobId) -> str:
    return f"blobs/{blob}"
