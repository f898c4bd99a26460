"""The disk as the durable parts see it, and the one way a file becomes durable.

In flow bytes and names below one root folder; out flow bytes that survive power loss once synced. Invariant:
`write_atomic` leaves either the old file or the whole new one, whatever moment the machine dies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Buffer = bytes | bytearray | memoryview
WriteAt = Callable[[int, Buffer], None]
"""Places bytes at an offset of one file."""


class Disk(Protocol):
    """A folder. Paths are relative, with forward slashes. Nothing is durable before its sync.

    Failures surface as `ShoalError` SH-DISK-01 (full) or SH-DISK-02; a missing file as `FileNotFoundError`.
    """

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes: ...
    def size(self, path: str) -> int | None:
        """Bytes in the file, or None where there is none."""

    def write(self, path: str, data: Buffer) -> None:
        """Create or replace the file's content, unsynced; makes parent folders."""

    def write_at(self, path: str, offset: int, data: Buffer) -> None: ...
    def reserve(self, path: str, size_bytes: int) -> WriteAt:
        """Take the room that the file will need, made if it is not there; its content stays as it is. Where that is
        not possible nothing happens, except that a full disk is known earlier. Gives what writes to this very file,
        whatever its name leads to by then."""

    def append(self, path: str, data: Buffer) -> None: ...
    def truncate(self, path: str, size: int) -> None: ...
    def sync(self, path: str) -> None:
        """Make the file's content durable."""

    def sync_folder(self, path: str) -> None:
        """Make creations, renames and removals in this folder durable."""

    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None:
        """Remove the file if it is there."""

    def list(self, folder: str) -> list[str]:
        """Names of the files in the folder (not below it), sorted; empty where there is no such folder."""


class SubDisk:
    """A folder of another disk, as a disk."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk, self._folder = disk, folder

    def _at(self, path: str) -> str:
        return f"{self._folder}/{path}" if path else self._folder

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        return self._disk.read(self._at(path), start, stop)

    def size(self, path: str) -> int | None:
        return self._disk.size(self._at(path))

    def write(self, path: str, data: Buffer) -> None:
        self._disk.write(self._at(path), data)

    def write_at(self, path: str, offset: int, data: Buffer) -> None:
        self._disk.write_at(self._at(path), offset, data)

    def reserve(self, path: str, size_bytes: int) -> WriteAt:
        return self._disk.reserve(self._at(path), size_bytes)

    def append(self, path: str, data: Buffer) -> None:
        self._disk.append(self._at(path), data)

    def truncate(self, path: str, size: int) -> None:
        self._disk.truncate(self._at(path), size)

    def sync(self, path: str) -> None:
        self._disk.sync(self._at(path))

    def sync_folder(self, path: str) -> None:
        self._disk.sync_folder(self._at(path))

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(self._at(old), self._at(new))

    def remove(self, path: str) -> None:
        self._disk.remove(self._at(path))

    def list(self, folder: str) -> list[str]:
        return self._disk.list(self._at(folder))


def folder_of(path: str) -> str:
    """The folder part of a path, "" for the root."""
    return path.rpartition("/")[0]


def write_atomic(
    disk: Disk, path: str, data: Buffer, reached: Callable[[str], None], spare: str | None = None
) -> None:
    """Replace `path` by `data`, durably. `reached` marks the points at which tests kill the process. `spare` may name a
    file that nobody needs: if it is there it becomes the new one, whose room need then not be found again."""
    temporary = path + ".tmp"
    if spare is not None and disk.size(spare) is not None:
        disk.rename(spare, temporary)
        disk.write_at(temporary, 0, data)
        disk.truncate(temporary, memoryview(data).nbytes)
    else:
        disk.write(temporary, data)
    reached("write.before-sync")
    disk.sync(temporary)
    disk.rename(temporary, path)
    reached("write.after-rename")
    disk.sync_folder(folder_of(path))
    reached("write.durable")
