"""Saved states as chunks: each tensor's bytes cut and stored by content, so that states share what is the same in them.

In flow snapshots; out flow the very same bytes. Files `chunks/HASH`, and `index/BLOB` for each snapshot: its chunks in
order. Invariant: every chunk is durable before the index that names it, and an index goes before the chunks that only
it named; a snapshot leaves here with the content that its name says, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import blake3
import msgspec

from shoal.base.disk import Disk, write_atomic
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.base.layout import Layout
from shoal.replica.blobs import CHUNK_BYTES, chunk_list, is_blob_id

LEAST_BYTES = 64 << 10
"""Neighbouring tensors smaller than this share a chunk: a file each would cost more than it could save."""
CHUNKS, INDEX, PINS = "chunks", "index", "pins"


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    chunks: tuple[tuple[str, int], ...]
    """(hash, bytes) of each, in order."""


@dataclass(frozen=True, slots=True)
class Added:
    size_bytes: int
    new_bytes: int
    """What was not there yet."""


class ChunkArchive:
    """One run's states that are kept for good. Not for two threads at once."""

    def __init__(self, disk: Disk, reached: Callable[[str], None] = lambda point: None) -> None:
        self._disk = disk
        self._reached = reached

    def blobs(self) -> list[BlobId]:
        return [BlobId(name) for name in self._disk.list(INDEX) if is_blob_id(name)]

    def has(self, blob: BlobId) -> bool:
        return is_blob_id(blob) and self._disk.size(f"{INDEX}/{blob}") is not None

    def pinned(self) -> set[BlobId]:
        """Snapshots that a person wants to be kept, whatever the rules say."""
        return {BlobId(name) for name in self._disk.list(PINS) if is_blob_id(name)}

    def add(self, blob: BlobId, data: bytes, layout: Layout) -> Added:
        """Keep a snapshot, durably."""
        if self.has(blob):
            return Added(len(data), 0)
        view, names, new_bytes = memoryview(data), [], 0
        for start, stop in cuts_of(data, layout):
            piece = view[start:stop]
            name = blake3.blake3(piece).hexdigest()
            names.append((name, stop - start))
            if self._disk.size(f"{CHUNKS}/{name}") is None:
                new_bytes += stop - start
                write_atomic(self._disk, f"{CHUNKS}/{name}", piece, self._reached)
        write_atomic(
            self._disk, f"{INDEX}/{blob}", msgspec.msgpack.encode(_Index(tuple(names))), self._reached
        )
        return Added(len(data), new_bytes)

    def get(self, blob: BlobId) -> bytes:
        """A snapshot. Raises `FileNotFoundError`, or SH-BLOB-02 that names the damaged file."""
        data = b"".join(self._read(name) for name, _ in self._index(blob).chunks)
        if chunk_list(data).blob != blob:
            raise _damaged(f"{INDEX}/{blob}")
        return data

    def keep_only(self, wanted: Iterable[BlobId]) -> int:
        """Let every other snapshot go, and the chunks that no one left names; how many files."""
        stay = set(wanted)
        gone = [blob for blob in self.blobs() if blob not in stay]
        for blob in gone:
            self._disk.remove(f"{INDEX}/{blob}")
        if not gone:
            return 0
        self._disk.sync_folder(INDEX)
        named = {name for blob in self.blobs() for name, _ in self._index(blob).chunks}
        loose = [name for name in self._disk.list(CHUNKS) if name not in named]
        for name in loose:
            self._disk.remove(f"{CHUNKS}/{name}")
        return len(gone) + len(loose)

    def used_bytes(self) -> int:
        """What the chunks take, each counted once."""
        return sum(self._disk.size(f"{CHUNKS}/{name}") or 0 for name in self._disk.list(CHUNKS))

    def damaged(self) -> Iterator[str]:
        """The files here that are not what they should be."""
        for name in self._disk.list(CHUNKS):
            if blake3.blake3(self._disk.read(f"{CHUNKS}/{name}")).hexdigest() != name:
                yield f"{CHUNKS}/{name}"
        for blob in self.blobs():
            try:
                sizes = [
                    (self._disk.size(f"{CHUNKS}/{name}"), size) for name, size in self._index(blob).chunks
                ]
                whole = all(found == size for found, size in sizes)
                if not whole or chunk_list(b"".join(map(self._raw, self._index(blob).chunks))).blob != blob:
                    yield f"{INDEX}/{blob}"
            except (ShoalError, FileNotFoundError):
                yield f"{INDEX}/{blob}"

    def _raw(self, chunk: tuple[str, int]) -> bytes:
        return self._disk.read(f"{CHUNKS}/{chunk[0]}")

    def _index(self, blob: BlobId) -> _Index:
        if not self.has(blob):
            raise FileNotFoundError(blob)
        try:
            return msgspec.msgpack.decode(self._disk.read(f"{INDEX}/{blob}"), type=_Index)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _damaged(f"{INDEX}/{blob}") from None

    def _read(self, name: str) -> bytes:
        try:
            data = self._disk.read(f"{CHUNKS}/{name}")
        except FileNotFoundError:
            raise _damaged(f"{CHUNKS}/{name}") from None
        if blake3.blake3(data).hexdigest() != name:
            raise _damaged(f"{CHUNKS}/{name}")
        return data


def read_index(data: bytes) -> tuple[tuple[str, int], ...]:
    """The chunks that an index names; none if it is not one (any more)."""
    try:
        return msgspec.msgpack.decode(data, type=_Index).chunks
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()


def cuts_of(data: bytes, layout: Layout) -> Iterator[tuple[int, int]]:
    """Where a snapshot is cut: after its header, at tensors, and within long ones."""
    vector = 4 * layout.numel
    vectors = (
        (len(data) - 1) // vector if vector else 0
    )  # The header takes less than a vector, or it is all there is.
    begin = len(data) - vectors * vector
    edges = [0, begin]
    for number in range(vectors):
        edges += [begin + number * vector + 4 * stop for stop in _tensor_edges(layout)]
    for start, stop in pairwise(edges):
        yield from ((at, min(at + CHUNK_BYTES, stop)) for at in range(start, stop, CHUNK_BYTES))


def _tensor_edges(layout: Layout) -> list[int]:
    """Where tensors end, small neighbours of one fragment taken together; the last edge is the vector's end."""
    fragment_ends = {fragment.stop for fragment in layout.fragments}
    edges, filled = [], 0
    for tensor in layout.tensors:
        stop = tensor.offset + tensor.numel
        filled += 4 * tensor.numel
        if filled >= LEAST_BYTES or stop in fragment_ends:
            edges.append(stop)
            filled = 0
    if not edges or edges[-1] != layout.numel:
        edges.append(layout.numel)
    return edges


def _damaged(path: str) -> ShoalError:
    return ShoalError(
        "SH-BLOB-02",
        f"the file {path} does not have the content its name says",
        "run: shoal ckpt verify --repair",
    )
