"""A disk that loses what was not synced.

In flow writes; out flows what a crash leaves of them. Invariant: synced content under a synced name survives;
anything else may be there, be gone, or be torn, as the seed decides.
"""

from __future__ import annotations

import random
from functools import partial

from shoal.base.disk import Buffer, WriteAt, folder_of


class _Inode:
    """A file's bytes. What was synced is a prefix of `live` until something in it is overwritten, and whole files that
    were written at once are shared by whoever wrote the same bytes: a thousand nodes then keep one copy."""

    __slots__ = ("_durable", "_synced", "live")

    def __init__(self) -> None:
        self.live: bytes | bytearray = b""
        self._synced = 0
        self._durable: bytes | None = None

    @property
    def durable(self) -> bytes:
        return bytes(self.live[: self._synced]) if self._durable is None else self._durable

    def sync(self) -> None:
        self._durable, self._synced = None, len(self.live)

    def replace(self, data: Buffer) -> None:
        self._durable = self.durable
        self.live = bytes(data)

    def changing(self, offset: int) -> bytearray:
        """The bytes, to be changed from here on."""
        if self._durable is None and offset < self._synced:
            self._durable = self.durable
        if isinstance(self.live, bytes):
            self.live = bytearray(self.live)
        return self.live


class SimDisk:
    """Implements `base.disk.Disk`. Content (inodes) and names (folders) become durable separately."""

    def __init__(self) -> None:
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._renamed: dict[str, dict[str, None]] = {}
        """By folder, the names that came or went since it was synced."""

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        live = self._inode(path).live
        if stop is not None and stop >= len(live):
            stop = None
        return bytes(live) if not start and stop is None else bytes(memoryview(live)[start:stop])

    def size(self, path: str) -> int | None:
        inode = self._names.get(path)
        return None if inode is None else len(inode.live)

    def write(self, path: str, data: Buffer) -> None:
        # An open(O_TRUNC) of a file whose old content was synced may still leave the old bytes.
        self._made(path).replace(data)

    def write_at(self, path: str, offset: int, data: Buffer) -> None:
        _place(self._made(path), offset, data)

    def reserve(self, path: str, size_bytes: int) -> WriteAt:
        return partial(_place, self._made(path))

    def append(self, path: str, data: Buffer) -> None:
        inode = self._made(path)
        inode.changing(len(inode.live)).extend(data)

    def truncate(self, path: str, size: int) -> None:
        del self._inode(path).changing(size)[size:]

    def sync(self, path: str) -> None:
        self._inode(path).sync()

    def sync_folder(self, path: str) -> None:
        for name in self._renamed.pop(path, ()):
            if name in self._names:
                self._durable_names[name] = self._names[name]
            else:
                self._durable_names.pop(name, None)

    def rename(self, old: str, new: str) -> None:
        self._names[new] = self._inode(old)
        del self._names[old]
        self._touched(old)
        self._touched(new)

    def remove(self, path: str) -> None:
        if self._names.pop(path, None) is not None:
            self._touched(path)

    def list(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        names = [name[len(prefix) :] for name in self._names if name.startswith(prefix)]
        return sorted([name for name in names if "/" not in name])

    def sizes(self) -> dict[str, int]:
        """Every file with its size."""
        return {name: len(inode.live) for name, inode in self._names.items()}

    def crash(self, rng: random.Random) -> None:
        """Power loss. Every change that was not synced is kept, lost or torn."""
        names = dict(self._durable_names)
        for name in sorted({**self._names, **self._durable_names}):
            if self._names.get(name) is not names.get(name) and rng.random() < 0.5:
                if name in self._names:
                    names[name] = self._names[name]
                else:
                    del names[name]
        for name in sorted(names):
            inode = names[name]
            if inode.live != inode.durable:
                inode.live = _what_is_left(inode, rng)
            inode.sync()
        self._names, self._durable_names, self._renamed = names, dict(names), {}

    def _made(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            inode = self._names[path] = _Inode()
            self._touched(path)
        return inode

    def _touched(self, path: str) -> None:
        self._renamed.setdefault(folder_of(path), {})[path] = None

    def _inode(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(path)
        return inode


def _what_is_left(inode: _Inode, rng: random.Random) -> bytes:
    """Content after a crash: the old, the new, or a new that is torn somewhere after what the two share."""
    choice = rng.random()
    if choice < 0.4:
        return inode.durable
    if choice < 0.7:
        return bytes(inode.live)
    shared = 0
    limit = min(len(inode.live), len(inode.durable))
    while shared < limit and inode.live[shared] == inode.durable[shared]:
        shared += 1
    cut = rng.randint(shared, len(inode.live)) if len(inode.live) > shared else shared
    return bytes(inode.live[:cut])


def _place(inode: _Inode, offset: int, data: Buffer) -> None:
    live = inode.changing(offset)
    if len(live) < offset:
        live.extend(bytes(offset - len(live)))
    live[offset : offset + len(data)] = data
