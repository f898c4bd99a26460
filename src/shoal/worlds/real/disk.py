"""A folder of real files behind the `Disk` protocol.

In flow bytes and relative names; out flow files below one root. Invariant: no name reaches outside the
root, and nothing is called durable before the kernel has confirmed an fsync of the file and of its folder.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from pathlib import Path

from shoal.base.disk import Buffer, WriteAt
from shoal.base.errors import ShoalError
from shoal.worlds.real.room import take_room

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # The last: this process may not write larger files.
_EARLY_BYTES = 4 << 20
"""How much of a file is handed to the device at a time. In smaller portions it costs more."""


class FileDisk:
    """Implements `base.disk.Disk` below `root`, which is created if it is not there."""

    def __init__(self, root: Path) -> None:
        with _explained(root, 0):
            root.mkdir(parents=True, exist_ok=True)
            self.root = root.resolve(strict=True)
        self._plain_folders: set[str] = set()

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of the file, fewer at its end."""
        if start < 0 or (stop is not None and stop < start):
            raise ValueError(f"[{start}, {stop}) is not a range")
        where = self._inside(path)
        with _explained(where, 0, missing_passes=True), open(where, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            end = size if stop is None else min(stop, size)
            return _read_at(file.fileno(), start, max(0, end - start))

    def size(self, path: str) -> int | None:
        where = self._inside(path)
        with _explained(where, 0):
            try:
                found = where.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return found.st_size if stat.S_ISREG(found.st_mode) else None

    def write(self, path: str, data: Buffer) -> None:
        self._put(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, data, 0)

    def write_at(self, path: str, offset: int, data: Buffer) -> None:
        """Place `data` at `offset`; the file is created, and grows with zeros, where needed."""
        if offset < 0:
            raise ValueError(f"{offset} is not an offset")
        self._put(path, os.O_WRONLY | os.O_CREAT, data, offset)

    def reserve(self, path: str, size_bytes: int) -> WriteAt:
        """As in `Disk`: a quarter of the processor time that writing takes goes into finding room piece by piece, and
        a twelfth into opening the file for each. It is closed when nobody can write to it any more."""
        where = self._inside(path)
        with _explained(where, size_bytes), self._opened(where, os.O_WRONLY | os.O_CREAT) as handle:
            try:
                take_room(handle, size_bytes)
            except OSError as error:
                os.truncate(
                    handle, os.fstat(handle).st_size
                )  # What room there was lies beyond the file's end.
                if error.errno in _FULL:
                    raise
            if os.name == "nt":  # There an open file cannot be renamed.
                return partial(self.write_at, path)
            return partial(_place, where, os.fdopen(os.dup(handle), "wb", buffering=0))

    def append(self, path: str, data: Buffer) -> None:
        self._put(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, data, None)

    def truncate(self, path: str, size: int) -> None:
        where = self._inside(path)
        with _explained(where, size, missing_passes=True):
            os.truncate(where, size)

    def sync(self, path: str) -> None:
        where = self._inside(path)
        with _explained(where, 0, missing_passes=True):
            _fsync(where, os.O_RDWR)

    def sync_folder(self, path: str) -> None:
        if os.name == "nt":  # Windows cannot open folders; NTFS journals their changes itself.
            return
        where = self.root if path == "" else self._inside(path)
        with _explained(where, 0, missing_passes=True):
            _fsync(where, os.O_RDONLY)

    def rename(self, old: str, new: str) -> None:
        source, target = self._inside(old), self._inside(new)
        with _explained(target, 0, missing_passes=True):
            if not source.exists():
                raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
            self._make_folders(target.parent)
            os.replace(source, target)

    def remove(self, path: str) -> None:
        where = self._inside(path)
        with _explained(where, 0):
            where.unlink(missing_ok=True)

    def list(self, folder: str) -> list[str]:
        where = self.root if folder == "" else self._inside(folder)
        with _explained(where, 0):
            try:
                with os.scandir(where) as found:
                    return sorted(entry.name for entry in found if entry.is_file())
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _inside(self, path: str) -> Path:
        parts = path.split("/")
        strange = "\\" in path or "\0" in path or (os.name == "nt" and ":" in path)
        if strange or any(part in ("", ".", "..") for part in parts):
            raise _refused(path, "it is not a plain relative path")
        # A symbolic link below the root may still point out of it.
        if (os.name == "nt" or self._has_links(parts)) and not self._leads_inside(path):
            raise _refused(path, "it leads out of the data folder")
        return self.root.joinpath(path)

    def _has_links(self, parts: Iterable[str]) -> bool:
        """Whether any of the folders, or the file, is one. A folder that was none is not looked at again: every look
        costs a system call, and threads that move bytes queue up for the interpreter after each."""
        where = str(self.root)
        *folders, name = parts
        for folder in folders:
            where = f"{where}{os.sep}{folder}"
            if where not in self._plain_folders:
                if os.path.islink(where):
                    return True
                if os.path.isdir(where):
                    self._plain_folders.add(where)
        return os.path.islink(f"{where}{os.sep}{name}")

    def _leads_inside(self, path: str) -> bool:
        return os.path.realpath(self.root.joinpath(path)).startswith(str(self.root) + os.sep)

    def _put(self, path: str, flags: int, data: Buffer, offset: int | None) -> None:
        where = self._inside(path)
        view = memoryview(data).cast("B")
        with _explained(where, len(view)), self._opened(where, flags) as handle:
            _write_all(handle, view, offset)

    @contextmanager
    def _opened(self, where: Path, flags: int) -> Iterator[int]:
        """The file, and its folders if it is made."""
        flags |= getattr(os, "O_BINARY", 0)
        try:
            handle = os.open(where, flags, 0o644)
        except FileNotFoundError:
            self._make_folders(where.parent)
            handle = os.open(where, flags, 0o644)
        try:
            yield handle
        finally:
            os.close(handle)

    def _make_folders(self, folder: Path) -> None:
        """Make missing folders, durably, so that `sync_folder` of the leaf suffices."""
        missing: list[Path] = []
        while folder != self.root and not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            new.mkdir(exist_ok=True)
            if os.name != "nt":
                _fsync(new.parent, os.O_RDONLY)


def _place(where: Path, file: FileIO, offset: int, data: Buffer) -> None:
    view = memoryview(data).cast("B")
    with _explained(where, len(view)):
        _write_all(file.fileno(), view, offset)


def _write_all(handle: int, view: memoryview, offset: int | None) -> None:
    """At the offset, or at the end of a file that is open for that."""
    done = 0
    while done < len(view):
        rest = view[done:]
        done += os.write(handle, rest) if offset is None else _write_at(handle, rest, offset + done)
    if offset is not None:
        _begin_writeback(handle, offset, len(view))


def _begin_writeback(handle: int, offset: int, size: int) -> None:
    """Let the device start on every portion that this write has brought to its end, so that the sync at the end of a
    large file finds little left to wait for.

    The advice drops clean pages of the range too, but those just written are dirty and stay.
    """
    start, stop = (at - at % _EARLY_BYTES for at in (offset, offset + size))
    if start < stop and hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # it is only advice
            os.posix_fadvise(handle, start, stop - start, os.POSIX_FADV_DONTNEED)


def _write_at(handle: int, data: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(handle, data, offset)
    os.lseek(handle, offset, os.SEEK_SET)  # Windows
    return os.write(handle, data)


def _read_at(handle: int, start: int, size: int) -> bytes:
    os.lseek(handle, start, os.SEEK_SET)
    first = os.read(handle, size)
    if len(first) == size:
        return first
    parts = [first]
    got = len(first)
    while parts[-1] and got < size:
        parts.append(os.read(handle, size - got))
        got += len(parts[-1])
    return b"".join(parts)


def _fsync(where: Path, flags: int) -> None:
    handle = os.open(where, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _explained(where: Path, needed_bytes: int, missing_passes: bool = False) -> Iterator[None]:
    """Turn the system's errors into ours: a full disk is SH-DISK-01, everything else SH-DISK-02."""
    try:
        yield
    except OSError as error:
        if missing_passes and isinstance(error, FileNotFoundError):
            raise
        if error.errno in _FULL:
            raise ShoalError(
                "SH-DISK-01",
                f"no room for {needed_bytes} bytes in {where}",
                "free some space, or move the data folder to a larger disk",
            ) from error
        raise ShoalError(
            "SH-DISK-02",
            f"{where}: {error.strerror or error}",
            "check that the folder exists, is yours to write, and that its disk is healthy",
        ) from error


def _refused(path: str, why: str) -> ShoalError:
    return ShoalError("SH-DISK-02", f"{path!r} is refused: {why}", "name a file below the data folder")
