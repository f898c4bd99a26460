"""Content-addressed blobs on a disk: written atomically, synced, verified, resumable, pruned.

In flow bytes, whole or chunk by chunk from strangers; out flow verified bytes. A blob's id is the root over
its size and the BLAKE3 hashes of its 1 MiB chunks; one of parts (`parts.py`) begins a chunk with every part, so that
a part can be checked without the others. Invariant: a file under its final name is complete and was
verified when it was written; reading verifies again, so that rot is found where it matters. An id that is not
64 hex digits, whoever sent it, names no blob.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial

import blake3
import msgspec

from shoal.base.disk import Buffer, Disk, WriteAt
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.replica.borrowing import borrowed, look_alikes
from shoal.replica.parts import FIRST_BYTES, MAX_PARTS, header_bytes, sizes_of

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
PRUNE_AFTER_ROUNDS = 2
PRUNE_ARRIVALS_AFTER_ROUNDS = 8
"""How long an arrival may bring nothing new. More than above: on a slow line one chunk may take some rounds."""
ROOM_BYTES = 256 << 20
"""The most that is taken of the disk before it comes: a blob that a stranger names may never do."""
_HASH_BYTES = 32
_is_blob_id = re.compile("[0-9a-f]{64}").fullmatch
_DOORS = 16
_OF_PARTS = 1 << 63
"""Added to the size in a list that names parts: no blob has so many bytes."""


class ChunkList(msgspec.Struct, frozen=True):
    """A blob's size and chunk hashes; its root is the blob's id, so it proves itself."""

    size_bytes: int
    hashes: tuple[bytes, ...]
    parts: tuple[int, ...] = ()
    """The sizes of its parts, the header's first; () if it has none."""

    @property
    def blob(self) -> BlobId:
        return BlobId(blake3.blake3(self.encode()).hexdigest())

    def encode(self) -> bytes:
        if not self.parts:
            return self.size_bytes.to_bytes(8, "little") + b"".join(self.hashes)
        numbers = (self.size_bytes | _OF_PARTS, len(self.parts), *self.parts)
        return b"".join([*(number.to_bytes(8, "little") for number in numbers), *self.hashes])

    def span(self, index: int) -> tuple[int, int]:
        return _spans(self.size_bytes, self.parts)[index] if self.parts else _even(index, self.size_bytes)

    def chunks_of(self, part: int) -> range:
        """The chunks that a part is made of."""
        counts = [-(-size // CHUNK_BYTES) for size in self.parts[: part + 1]]
        return range(sum(counts[:-1]), sum(counts))


def _even(index: int, size_bytes: int) -> tuple[int, int]:
    return index * CHUNK_BYTES, min((index + 1) * CHUNK_BYTES, size_bytes)


@lru_cache(maxsize=256)
def _spans(size_bytes: int, parts: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Where each chunk lies: every part begins one, and is cut into even ones."""
    spans, begin = [], 0
    for size in parts or (size_bytes,):
        for index in range(-(-size // CHUNK_BYTES)):
            start, stop = _even(index, size)
            spans.append((begin + start, begin + stop))
        begin += size
    return tuple(spans)


def chunk_list(data: Buffer) -> ChunkList:
    view = memoryview(data)
    parts = sizes_of(view, len(view))
    if not parts and 0 < len(view) <= CHUNK_BYTES:
        return ChunkList(len(view), (blake3.blake3(view).digest(),))
    chunks = (view[start:stop] for start, stop in _spans(len(view), parts))
    return ChunkList(len(view), tuple(blake3.blake3(chunk).digest() for chunk in chunks), parts)


def read_chunk_list(data: bytes, blob: BlobId) -> ChunkList | None:
    """The list in hostile bytes, or None if it is not this blob's."""
    size_bytes, begin = int.from_bytes(data[:8], "little"), 8
    parts: tuple[int, ...] = ()
    if size_bytes & _OF_PARTS:
        size_bytes ^= _OF_PARTS
        begin = 16 + 8 * min(int.from_bytes(data[8:16], "little"), MAX_PARTS + 1)
        parts = tuple(int.from_bytes(data[at : at + 8], "little") for at in range(16, begin, 8))
        if sum(parts) != size_bytes or not parts:
            return None
    if len(data) < begin or (len(data) - begin) % _HASH_BYTES:
        return None
    hashes = tuple(data[at : at + _HASH_BYTES] for at in range(begin, len(data), _HASH_BYTES))
    found = ChunkList(size_bytes, hashes, parts)
    right_count = len(hashes) == sum(-(-size // CHUNK_BYTES) for size in parts or (size_bytes,))
    return found if right_count and found.blob == blob else None


def is_blob_id(text: str) -> bool:
    return _is_blob_id(text) is not None


@dataclass(slots=True)
class _Arriving:
    """A blob of which some chunks are here."""

    chunks: ChunkList
    missing: set[int] = field(default_factory=set)
    moved: bool = True
    """Something happened to it since it was last pruned."""
    write_at: WriteAt | None = None
    """Writes to its file, where room was taken for it."""

    @property
    def here_bytes(self) -> int:
        spans = (self.chunks.span(index) for index in self.missing)
        return self.chunks.size_bytes - sum(stop - start for start, stop in spans)


class BlobStore:
    """Files `blobs/ID`, `blobs/ID.part` while arriving, `blobs/ID.rotten` once found so. Thread-safe."""

    def __init__(self, disk: Disk, reached: Callable[[str], None]) -> None:
        self.disk = disk
        """The folder that `blobs` lies in."""
        self._disk = disk
        self._reached = reached
        self._lock = threading.Lock()
        self._doors = tuple(threading.Lock() for _ in range(_DOORS))
        """Of which a blob has one: who writes or finishes its file goes through it before the lock."""
        self._arriving: dict[BlobId, _Arriving] = {}
        self._lists: dict[BlobId, ChunkList] = {}
        self._unneeded_since: dict[str, int] = {}
        self._held: dict[BlobId, int] = {}
        self._sizes: dict[str, int] | None = None
        """Bytes by file name, counted on the disk when first needed, and kept up from then on."""

    def has(self, blob: BlobId) -> bool:
        return self.size(blob) is not None

    def size(self, blob: BlobId) -> int | None:
        return self._disk.size(_path(blob)) if is_blob_id(blob) else None

    def put(self, data: Buffer, chunks: ChunkList | None = None) -> BlobId:
        """Store bytes durably; their id. `chunks` is their list, where it was made already."""
        chunks = chunk_list(data) if chunks is None else chunks
        blob = chunks.blob
        with self._door(blob):
            if not self.has(blob):
                with self._lock:
                    self._arriving.pop(blob, None)  # Its chunks are overwritten, even if this fails half-way.
                with self.held(blob):
                    self._disk.write(_path(blob) + ".part", data)
                    self._finish(blob)
                with self._lock:
                    self._landed(blob, chunks.size_bytes)
        self._lists[blob] = chunks
        return blob

    def get(self, blob: BlobId) -> bytes:
        """The whole blob, verified. Raises `FileNotFoundError`, or SH-BLOB-02 if the file has rotted; then
        the file is set aside, so that the next fetch brings a good one."""
        if not is_blob_id(blob):
            raise FileNotFoundError(blob)
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
        """A range as it is on disk, unverified: the receiver checks it. None if the blob is not here, or if
        that is no range."""
        if not is_blob_id(blob) or not 0 <= start <= stop:
            return None
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
        with self._door(blob), self._lock:
            if self.has(blob):
                return ()
            if blob not in self._arriving:
                self._arriving[blob] = _Arriving(chunks, set(self._unsound_chunks(blob, chunks)))
                self._borrow(blob, self._arriving[blob])
            arriving = self._arriving[blob]
            arriving.moved = True
            if not chunks.hashes:
                self._disk.write(_path(blob) + ".part", b"")
            self._note(f"{blob}.part", arriving.here_bytes)
            return tuple(sorted(arriving.missing))

    def make_room(self, blob: BlobId) -> None:
        """Take room on the disk for an expected blob, which makes it cheaper to write. Only for what this side wants:
        an announcement alone takes none."""
        with self._door(blob):
            arriving = self._arriving.get(blob)
            if arriving is not None and arriving.missing:
                room_bytes = min(arriving.chunks.size_bytes, ROOM_BYTES)
                arriving.write_at = self._disk.reserve(_path(blob) + ".part", room_bytes)

    def add(self, blob: BlobId, index: int, data: Buffer) -> bool:
        """Take one chunk. False if it is not the chunk the list names, whoever sent it."""
        arriving = self._arriving.get(blob)
        if arriving is None:
            return self.has(blob)  # Whoever brought it.
        if not 0 <= index < len(arriving.chunks.hashes):
            return False
        if index not in arriving.missing:
            return True
        if blake3.blake3(data).digest() != arriving.chunks.hashes[index]:
            return False
        if self._arriving.get(blob) is not arriving:
            return self.has(blob)  # A late chunk must not begin another file.
        write_at = arriving.write_at or partial(self._disk.write_at, _path(blob) + ".part")
        write_at(arriving.chunks.span(index)[0], data)
        with self._lock:
            if index in arriving.missing and self._arriving.get(blob) is arriving:
                self._note(f"{blob}.part", self._noted(f"{blob}.part") + len(data))
            arriving.missing.discard(index)
            arriving.moved = True
        return True

    def finish(self, blob: BlobId) -> bool:
        """Make a complete arrival durable. False while chunks are missing, or if it does not have the parts that its
        list says: nobody could read it, so it goes."""
        with self._door(blob), self._lock:
            if self.has(blob):
                self._arriving.pop(blob, None)
                return True
            arriving = self._arriving.get(blob)
            if arriving is None or arriving.missing:
                return False
            if self._parts_in(f"{_path(blob)}.part", arriving.chunks.size_bytes) != arriving.chunks.parts:
                self._remove(f"{blob}.part")
                return False
            self._finish(blob)
            self._lists[blob] = arriving.chunks
            self._landed(blob, arriving.chunks.size_bytes)
            return True

    def abandon(self, blob: BlobId) -> None:
        """Forget an unfinished arrival and its chunks, unless somebody here holds it."""
        with self._lock:
            if blob not in self._held and self._arriving.pop(blob, None) is not None:
                self._remove(f"{blob}.part")

    @contextmanager
    def held(self, blob: BlobId) -> Iterator[None]:
        """While this lasts, the blob's arrival is neither pruned nor abandoned."""
        with self._lock:
            self._held[blob] = self._held.get(blob, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._held[blob] -= 1
                if not self._held[blob]:
                    del self._held[blob]

    # --- housekeeping ------------------------------------------------------------------------------------

    def prune(self, keep: Iterable[BlobId], round_number: int, *, spare_bytes: int = 0) -> int:
        """Remove blobs that have not been in `keep` for some rounds, oldest first, until those left of them take
        no more than `spare_bytes`; how many files. Not at once: an update that was pushed here may not be in the
        log yet, though it was promised. Unfinished arrivals and rotten files go likewise, and are never spared;
        an arrival that is wanted, held or moving stays."""
        with self._lock:
            self._sizes = None  # Count anew from time to time, lest a slip go on for ever.
            wanted = set(keep)
            unneeded = [name for name in self._counted() if self._is_unneeded(name, wanted)]
            since = {name: self._unneeded_since.get(name, round_number) for name in unneeded}
            left = sum(self._noted(name) for name in unneeded if is_blob_id(name))
            removed = 0
            for name in sorted(unneeded, key=lambda name: (since[name], name)):
                spared = is_blob_id(name) and left <= spare_bytes
                if spared or round_number - since[name] < self._patience_rounds(name):
                    continue
                left -= self._noted(name) if is_blob_id(name) else 0
                self._remove(name)
                del since[name]
                removed += 1
            self._unneeded_since = since
            return removed

    def discard(self, blob: BlobId) -> None:
        """Remove a blob now."""
        with self._lock:
            if is_blob_id(blob):
                self._remove(blob)

    def used_bytes(self) -> int:
        """What all files here take, an arrival as much as has come of it. Cheap."""
        with self._lock:
            return sum(self._counted().values())

    def arrived_bytes(self, blob: BlobId) -> int:
        """What an unfinished arrival takes of them."""
        with self._lock:
            return self._noted(f"{blob}.part")

    def stored(self) -> list[BlobId]:
        """Every whole blob that is stored here, whoever needs it."""
        return sorted(BlobId(name) for name in self._disk.list("blobs") if is_blob_id(name))

    def damaged(self, blobs: Iterable[BlobId]) -> list[BlobId]:
        """Which of these are stored with content that is not theirs. Changes nothing."""
        return [blob for blob in blobs if self.has(blob) and self._is_damaged(blob)]

    def _is_damaged(self, blob: BlobId) -> bool:
        try:
            return chunk_list(self._disk.read(_path(blob))).blob != blob
        except FileNotFoundError:
            return False  # Pruned meanwhile, by whoever runs here.

    def _door(self, blob: BlobId) -> threading.Lock:
        return self._doors[hash(blob) % _DOORS]

    def _finish(self, blob: BlobId) -> None:
        part = _path(blob) + ".part"
        self._reached("blob.before-sync")
        self._disk.sync(part)
        self._disk.rename(part, _path(blob))
        self._reached("blob.after-rename")
        self._disk.sync_folder("blobs")

    def _set_aside(self, blob: BlobId) -> None:
        cause = "its content is not what its name says; it is set aside, and fetched again if it is needed"
        log.warning("blob_rotten", extra={"file": _path(blob), "cause": cause})
        with self._lock:
            self._disk.rename(_path(blob), _path(blob) + ".rotten")
            self._note(f"{blob}.rotten", self._noted(blob))
            self._note(blob, 0)

    # --- with the lock held ------------------------------------------------------------------------------

    def _landed(self, blob: BlobId, size_bytes: int) -> None:
        self._arriving.pop(blob, None)
        self._note(f"{blob}.part", 0)
        self._note(blob, size_bytes)

    def _remove(self, name: str) -> None:
        self._disk.remove(f"blobs/{name}")
        self._note(name, 0)
        blob, _, kind = name.partition(".")
        if kind == "part":
            self._arriving.pop(BlobId(blob), None)
        elif not kind:
            self._lists.pop(BlobId(blob), None)

    def _is_unneeded(self, name: str, wanted: set[BlobId]) -> bool:
        text, _, kind = name.partition(".")
        blob = BlobId(text)
        if not is_blob_id(blob) or kind not in ("", "part", "rotten"):
            return False  # Not a file of ours.
        if kind != "part":
            return kind == "rotten" or blob not in wanted
        arriving = self._arriving.get(blob)
        moved = arriving is not None and arriving.moved
        if arriving is not None:
            arriving.moved = False
        return not (moved or blob in self._held or (blob in wanted and not self.has(blob)))

    def _patience_rounds(self, name: str) -> int:
        arriving = BlobId(name.removesuffix(".part")) in self._arriving
        return PRUNE_ARRIVALS_AFTER_ROUNDS if arriving else PRUNE_AFTER_ROUNDS

    def _counted(self) -> dict[str, int]:
        if self._sizes is None:
            names = self._disk.list("blobs")
            self._sizes = {name: self._disk.size(f"blobs/{name}") or 0 for name in names}
            # The file of an arrival may have holes: what counts is what came.
            self._sizes |= {f"{blob}.part": found.here_bytes for blob, found in self._arriving.items()}
        return self._sizes

    def _noted(self, name: str) -> int:
        return self._counted().get(name, 0)

    def _note(self, name: str, size_bytes: int) -> None:
        if self._sizes is None:
            return  # It will be counted when it is needed.
        self._sizes[name] = size_bytes
        if not size_bytes:
            del self._sizes[name]

    def _parts_in(self, path: str, size_bytes: int) -> tuple[int, ...]:
        length = header_bytes(self._disk.read(path, 0, min(FIRST_BYTES, size_bytes)))
        return sizes_of(self._disk.read(path, 0, min(length, size_bytes)), size_bytes) if length else ()

    def _unsound_chunks(self, blob: BlobId, chunks: ChunkList) -> list[int]:
        part = _path(blob) + ".part"
        if self._disk.size(part) is None:
            return list(range(len(chunks.hashes)))
        unsound = []
        for index, expected in enumerate(chunks.hashes):
            if blake3.blake3(self._disk.read(part, *chunks.span(index))).digest() != expected:
                unsound.append(index)
        return unsound

    def _borrow(self, blob: BlobId, arriving: _Arriving) -> None:
        """Take over the chunks that an older version of the same has."""
        size_bytes, lists = arriving.chunks.size_bytes, []
        if size_bytes <= CHUNK_BYTES:
            return
        stored = {BlobId(name): size for name, size in self._counted().items() if is_blob_id(name)}
        for other in look_alikes(size_bytes, stored):
            known = self._lists.get(other) or chunk_list(self._disk.read(_path(other)))
            if known.blob == other:
                self._lists[other] = known
            lists.append((known.hashes, partial(self._chunk, other, known)))
        missing = {index: arriving.chunks.hashes[index] for index in arriving.missing}
        for index, data in borrowed(missing, lists):
            self._disk.write_at(f"{_path(blob)}.part", arriving.chunks.span(index)[0], data)
            arriving.missing.discard(index)

    def _chunk(self, blob: BlobId, chunks: ChunkList, index: int) -> bytes:
        return self._disk.read(_path(blob), *chunks.span(index))


def _path(blob: BlobId) -> str:
    return f"blobs/{blob}"
