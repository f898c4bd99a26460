"""What a soak's disks hold: the logs of coordinators and nodes, sizes, saved states; and what of it was lost.

In flow folders; out flow entries, sizes and complaints. Invariant: everything is read as it lies there; nothing is
repaired by looking.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from shoal.apps.home import Home
from shoal.base.disk import SubDisk
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId, RunId
from shoal.replica.blobs import BlobStore
from shoal.runlog.chain import Link, read_link
from shoal.runlog.entries import Seal
from shoal.runlog.files import FileLogStore
from shoal.runlog.view import verify_log
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.sqlstore import SqlLogStore


@dataclass(slots=True)
class Disks:
    """The homes of a fleet."""

    folder: Path
    coordinators: tuple[str, ...]
    nodes: tuple[str, ...]
    run: RunId
    _rounds: int = 0
    _read: int = 0

    def stored(self, name: str, start: int = 0) -> list[bytes]:
        """A coordinator's log from a position on; nothing while it cannot be read."""
        with contextlib.suppress(ShoalError, sqlite3.Error):
            store = SqlLogStore(Home(self.folder / name).store_url, create=False)
            with contextlib.closing(store):
                return list(store.read(self.run, start))
        return []

    def copied(self, name: str) -> list[bytes]:
        """A node's copy of the log. Raises SH-LOG-01 where it is damaged."""
        where = SubDisk(FileDisk(Home(self.folder / name).node), f"runs/{self.run}")
        return list(FileLogStore(where, lambda point: None).read(self.run))

    def rounds(self) -> int:
        """Seals in the longest log."""
        news = max((self.stored(name, self._read) for name in self.coordinators), key=len)
        self._rounds += sum(isinstance(read_link(entry).entry.body, Seal) for entry in news)
        self._read += len(news)
        return self._rounds

    def terms(self) -> int:
        return len({link.entry.term for link in map(read_link, self.longest())})

    def longest(self) -> list[bytes]:
        return max((self.stored(name) for name in self.coordinators), key=len)

    def sizes(self, name: str) -> tuple[int, int]:
        """Bytes of a home, and those of them that are the log."""
        total = log = 0
        for path in (self.folder / name).rglob("*"):
            with contextlib.suppress(OSError):
                size = path.stat().st_size if path.is_file() else 0
                total += size
                is_log = path.name.startswith("store.sqlite") or path.suffix == ".log"
                log += size if is_log else 0
        return total, log

    def has_blob(self, blob: BlobId) -> bool:
        """Whether any of them holds it."""
        rooms = [Home(self.folder / name).coordinator for name in self.coordinators]
        rooms += [Home(self.folder / name).node for name in self.nodes]
        disks = [SubDisk(FileDisk(room), f"runs/{self.run}") for room in rooms if room.exists()]
        return any(BlobStore(disk, lambda point: None).has(blob) for disk in disks)


@dataclass(slots=True)
class Noted:
    """Entries that were seen on a coordinator's disk at some time: position and hash."""

    heads: dict[int, str] = field(default_factory=dict)
    _read: int = 0

    def note(self, disks: Disks) -> None:
        for name in disks.coordinators:
            for link in _links(disks.stored(name, self._read)):
                self.heads.setdefault(link.entry.position, link.hash)
        self._read = max(self.heads, default=-1) + 1


def what_is_lost(disks: Disks, noted: Noted) -> list[str]:
    """In words, everything that should be there and is not, or is there twice."""
    final = disks.longest()
    view, finding = verify_log(final, disks.run)
    if finding is not None:
        return [f"entry {finding.position} {finding.what}"]
    hashes = [link.hash for link in _links(final)]
    lost = [f"entry {at}" for at, known in noted.heads.items() if at >= len(hashes) or hashes[at] != known]
    copies = {name: disks.stored(name) for name in disks.coordinators}
    copies |= {name: disks.copied(name) for name in disks.nodes}
    for name, copy in copies.items():
        if [link.hash for link in _links(copy)] != hashes[: len(copy)]:
            lost.append(f"{name} has another log")
    rounds = [link.entry.body.round for link in _links(final) if isinstance(link.entry.body, Seal)]
    if rounds != list(range(len(rounds))):
        lost.append("a round was sealed twice, or not at all")
    lost += [f"the state at {s.at}" for s in view.kept_states() if not disks.has_blob(s.blob)]
    return lost


def _links(entries: list[bytes]) -> list[Link]:
    return [read_link(entry) for entry in entries]
