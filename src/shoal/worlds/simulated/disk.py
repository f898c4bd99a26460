"""A disk that loses what was not synced.

In flow writes; out flows what a crash leaves of them. Invariant: synced content under a synced name survives;
anything else may be there, be gone, or be torn, as the seed decides.
"""

from __future__ import annotations

import random

from shoal.base.disk import Buffer, folder_of


class _Inode:
    __slots__ = ("durable", "live")

    def __init__(self) -> None:
        self.live = bytearray()
        self.durable = b""


class SimDisk:
    """Implements `base.disk.Disk`. Content (inodes) and names (folders) become durable separately."""

    def __init__(self) -> None:
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        return bytes(self._inode(path).live[start:stop])

    def size(self, path: str) -> int | None:
        inode = self._names.get(path)
        return None if inode is None else len(inode.live)

    def write(self, path: str, data: Buffer) -> None:
        # A new inode, as open(O_TRUNC) of a file whose old content was synced may still leave the old bytes.
        inode = self._names.setdefault(path, _Inode())
        inode.live = bytearray(data)

    def write_at(self, path: str, offset: int, data: Buffer) -> None:
        live = self._names.setdefault(path, _Inode()).live
        if len(live) < offset:
            live.extend(bytes(offset - len(live)))
        live[offset : offset + len(data)] = data

    def append(self, path: str, data: Buffer) -> None:
        self._names.setdefault(path, _Inode()).live.extend(data)

    def truncate(self, path: str, size: int) -> None:
        del self._inode(path).live[size:]

    def sync(self, path: str) -> None:
        inode = self._inode(path)
        inode.durable = bytes(inode.live)

    def sync_folder(self, path: str) -> None:
        here = [name for name in {**self._names, **self._durable_names} if folder_of(name) == path]
        for name in here:
            if name in self._names:
                self._durable_names[name] = self._names[name]
            else:
                del self._durable_names[name]

    def rename(self, old: str, new: str) -> None:
        self._names[new] = self._inode(old)
        del self._names[old]

    def remove(self, path: str) -> None:
        self._names.pop(path, None)

    def list(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        names = [name.removeprefix(prefix) for name in self._names if name.startswith(prefix)]
        return sorted(name for name in names if "/" not in name)

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
            if bytes(inode.live) != inode.durable:
                inode.live = bytearray(_what_is_left(inode, rng))
            inode.durable = bytes(inode.live)
        self._names, self._durable_names = names, dict(names)

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
