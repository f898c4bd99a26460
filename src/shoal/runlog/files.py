"""A log store of plain files on a `Disk`: what nodes keep, and the coordinator in simulation.

In flow encoded entries; out flow the same. Each record is its length, a checksum and its bytes. Invariant: a
record is synced before `append` returns; a torn tail, which nobody was told about, is cut off when the log is
opened, and damage anywhere else is reported, never skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import blake3

from shoal.base.disk import Disk, write_atomic
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId

_HEADER = struct.Struct("<I8s")


class FileLogStore:
    """Folders `logs/RUN/` with the file `entries` and one file for each kept value."""

    def __init__(self, disk: Disk, reached: Callable[[str], None]) -> None:
        self._disk = disk
        self._reached = reached
        self._offsets: dict[RunId, list[int]] = {}

    def runs(self) -> list[RunId]:
        names = self._disk.list("logs")
        runs = [RunId(name.removesuffix(".log")) for name in names if name.endswith(".log")]
        return [run for run in runs if self._began(run)]

    def _began(self, run: RunId) -> bool:
        """False for a log whose first entry was torn by a crash; a damaged one is told when it is opened."""
        try:
            return self.length(run) > 0
        except ShoalError:
            return True

    def append(self, run: RunId, position: int, entry: bytes) -> None:
        offsets = self._scan(run)
        length = len(offsets) - 1
        if position != length:
            raise ShoalError(
                "SH-LOG-03",
                f"entry {position} does not fit a log of {length} entries",
                "another process writes this log; stop one of them",
            )
        path, record = _path(run), _HEADER.pack(len(entry), _checksum(entry)) + entry
        # Not an append: what an earlier attempt left on a full disk, which nobody was told about, is overwritten.
        self._disk.write_at(path, offsets[-1], record)
        self._reached("log.before-sync")
        self._disk.sync(path)
        if position == 0:
            self._disk.sync_folder("logs")
        offsets.append(offsets[-1] + len(record))
        self._reached("log.durable")

    def length(self, run: RunId) -> int:
        return len(self._scan(run)) - 1

    def read(self, run: RunId, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        offsets = self._scan(run)
        last = len(offsets) - 1 if stop is None else min(stop, len(offsets) - 1)
        for position in range(max(0, start), last):
            record = self._disk.read(_path(run), offsets[position], offsets[position + 1])
            yield record[_HEADER.size :]

    def set_aside(self, run: RunId) -> None:
        """Put a damaged log out of the way; the next read finds an empty one."""
        if self._disk.size(_path(run)) is not None:
            self._disk.rename(_path(run), _path(run) + ".damaged")
            self._disk.sync_folder("logs")
        self._offsets.pop(run, None)

    def keep(self, run: RunId, key: str, value: bytes) -> None:
        write_atomic(self._disk, f"kept-{run}/{key}", value, self._reached)

    def kept(self, run: RunId, prefix: str) -> dict[str, bytes]:
        folder = f"kept-{run}"
        names = [n for n in self._disk.list(folder) if n.startswith(prefix) and not n.endswith(".tmp")]
        return {name: self._disk.read(f"{folder}/{name}") for name in names}

    def drop(self, run: RunId, key: str) -> None:
        if self._disk.size(f"kept-{run}/{key}") is not None:
            self._disk.remove(f"kept-{run}/{key}")
            self._disk.sync_folder(f"kept-{run}")

    def _scan(self, run: RunId) -> list[int]:
        """Offsets of the records, with the end; read once, then kept."""
        if run in self._offsets:
            return self._offsets[run]
        offsets = [0]
        size = self._disk.size(_path(run))
        data = self._disk.read(_path(run)) if size else b""
        while (end := _record_end(data, offsets[-1])) is not None:
            offsets.append(end)
        if offsets[-1] < len(data):
            self._cut_tail(run, data, offsets)
        self._offsets[run] = offsets
        return offsets

    def _cut_tail(self, run: RunId, data: bytes, offsets: list[int]) -> None:
        """Cut a torn last record; raise if what follows it shows that it was not the last."""
        start = offsets[-1]
        # The damage may be in the length itself, so a sound record is looked for at every later byte.
        if any(_record_end(data, later) for later in range(start + 1, len(data) - _HEADER.size + 1)):
            raise ShoalError(
                "SH-LOG-01",
                f"entry {len(offsets) - 1} of run {run} is damaged on disk",
                "move the run's log file away and join again: the log will be fetched anew",
            )
        self._disk.truncate(_path(run), start)
        self._disk.sync(_path(run))


def _path(run: RunId) -> str:
    return f"logs/{run}.log"


def _checksum(entry: bytes) -> bytes:
    return blake3.blake3(entry).digest()[:8]


def _record_end(data: bytes, start: int) -> int | None:
    """Where the record at `start` ends, or None if there is no whole, sound record there."""
    if start + _HEADER.size > len(data):
        return None
    length, checksum = _HEADER.unpack_from(data, start)
    end = start + _HEADER.size + int(length)
    if end > len(data) or _checksum(data[start + _HEADER.size : end]) != checksum:
        return None
    return end
