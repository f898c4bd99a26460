"""Damaged files made whole: from other homes here, from the run's members through a coordinator that is on, by trying.

In flow a damaged file; out flows a sentence that begins with "repaired" if it is whole again. Invariant: only content
that passes the check the damaged one failed is put in its place, and the damaged one stays beside it.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import blake3
import httpx

from shoal.apps.logs_reading import find_log
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.base.rot import SUFFIX, checksum, mended
from shoal.checkpoint.archive import CHUNKS, INDEX, read_index
from shoal.replica.blobs import chunk_list
from shoal.runlog.chain import BadEntry, genesis_of, read_link
from shoal.runlog.files import FileLogStore
from shoal.runlog.view import RunView
from shoal.runlog.voter import FORGOTTEN, RECORD, is_record
from shoal.strategy.recipe import recipe_in_log
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.sqlstore import SqlLogStore, value_checksum

MEMBERS_S = 30.0
"""How long members may take to give a coordinator or node that is on what it has lost."""
LOOK_S = 0.1
FORGETFUL = (
    "what this coordinator promised as a voter is lost: it votes no more in this run, and the others go on"
)


class Repairing:
    """`sources` are homes that may hold copies."""

    def __init__(self, root: Path, sources: Sequence[Path]) -> None:
        self._root = root
        self._sources = [Path(source).absolute() for source in sources]

    def blob(self, path: Path, run: RunId) -> str:
        """Set the damaged file aside; a copy from another folder takes its place, or the members' does."""
        aside = path.with_name(path.name + ".rotten")
        copy = next((other for other in self._copies(path.name, path) if _is_blob(other, path.name)), None)
        path.rename(aside)
        if copy is not None:
            landing = path.with_name(path.name + ".part")
            shutil.copyfile(copy, landing)
            landing.rename(path)
            return f"repaired from {copy}"
        deadline = time.monotonic() + (MEMBERS_S if _is_on(self._root) else 0.0)
        while time.monotonic() < deadline:
            if path.exists() and _is_blob(path, path.name):
                return "repaired from the run's members"
            time.sleep(LOOK_S)
        return "set aside; it is fetched from the run's members once this home's process is on"

    def archive(self, path: Path) -> str:
        """A chunk of archived states, or the index of one: a copy, or a chunk out of a whole snapshot elsewhere."""
        aside = path.with_name(path.name + ".rotten")
        for copy in self._like(path):
            if path.parent.name == CHUNKS and blake3.blake3(copy).hexdigest() == path.name:
                path.rename(aside)
                path.write_bytes(copy)
                return "repaired from a copy"
            if path.parent.name == INDEX and _index_fits(copy, path):
                path.rename(aside)
                path.write_bytes(copy)
                return "repaired from a copy"
        return "no copy of it was found; name homes that may have one with --from"

    def _like(self, path: Path) -> Iterator[bytes]:
        """What may be this file: of the same name elsewhere, or the part of a snapshot that it should be."""
        for home in self._sources:
            for other in sorted(home.rglob(f"{path.parent.name}/{path.name}")):
                if other != path:
                    yield other.read_bytes()
        for index in sorted(path.parent.parent.glob(f"{INDEX}/*")):
            at = 0
            for name, size in read_index(index.read_bytes()):
                if name == path.name:
                    yield from (copy.read_bytes()[at : at + size] for copy in self._copies(index.name, index))
                at += size

    def log(self, path: Path, run: RunId) -> str:
        """A node's log: the sound entries of all copies, as far as they go; the rest comes when the node joins."""
        entries = self.entries(run)
        path.rename(path.with_name(path.name + ".damaged"))
        store = FileLogStore(FileDisk(path.parent.parent), _pass)
        for position, entry in enumerate(entries):
            store.append(run, position, entry)
        if entries:
            return f"repaired: {len(entries)} entries are whole, and later ones come from the coordinator"
        return "set aside; the whole log comes from the coordinator when this node joins again"

    def small(self, path: Path) -> str:
        """A key or a token: by its checksum, if one byte of it is wrong; a checksum by what it is of."""
        if path.name.endswith(SUFFIX):
            path.write_bytes(checksum(path.with_name(path.name.removesuffix(SUFFIX)).read_bytes()))
            return "repaired: written anew"
        if not path.exists():
            return "it is gone; restore it from a copy"
        right = mended(path.read_bytes(), path.with_name(path.name + SUFFIX).read_bytes())
        if right is None:
            return "more than one byte is wrong; restore it from a copy"
        shutil.copy2(path, path.with_name(path.name + ".damaged"))
        path.write_bytes(right)
        return "repaired: one byte was put right"

    def private(self, path: Path) -> str:
        """What only this node had: out of the way, so that it goes on without."""
        path.rename(path.with_name("damaged-" + path.name))
        return "set aside for good: this node goes on from the run's state without it"

    # --- copies ------------------------------------------------------------------------------------------

    def entries(self, run: RunId, more: Sequence[list[bytes]] = ()) -> list[bytes]:
        """The longest sound log that the copies give together, each entry checked as it is taken."""
        logs = [*more, *self._logs(run)]
        view = RunView()
        found: list[bytes] = []
        while True:
            position = len(found)
            candidates = [log[position] for log in logs if position < len(log)]
            taken = next((entry for entry in candidates if _applies(view, entry, run)), None)
            if taken is None:
                return found
            found.append(taken)

    def _logs(self, run: RunId) -> Iterator[list[bytes]]:
        for home in self._sources:
            for path in sorted(home.rglob(f"{run}.log")):
                with contextlib.suppress(ShoalError):
                    yield find_log(None, None, "", node=True, file=path).entries
            for path in sorted(home.rglob("store.sqlite")):
                yield [entry for found, entry in rows_in(path) if found == run]

    def runs(self) -> set[RunId]:
        """Every run that some copy has a log of."""
        logs = (path for home in self._sources for path in home.rglob("logs/*.log"))
        return {RunId(path.stem) for path in logs}

    def _copies(self, name: str, damaged: Path) -> Iterator[Path]:
        for home in self._sources:
            yield from (path for path in sorted(home.rglob(f"blobs/{name}")) if path != damaged)


def _is_blob(path: Path, name: str) -> bool:
    with contextlib.suppress(OSError):
        return chunk_list(path.read_bytes()).blob == name
    return False


def _index_fits(data: bytes, path: Path) -> bool:
    """Whether this index leads to the snapshot that its name says."""
    with contextlib.suppress(OSError):
        chunks = path.parent.parent / CHUNKS
        whole = b"".join((chunks / name).read_bytes() for name, _ in read_index(data))
        return chunk_list(whole).blob == path.name
    return False


def _is_on(root: Path) -> bool:
    """True if a process works in this home: a coordinator's store or a node's folder is locked."""
    try:
        address = (root / "api-address").read_text("utf-8").strip()
        return httpx.get(f"{address}/healthz", timeout=2.0, trust_env=False).status_code < 500
    except (OSError, httpx.HTTPError):
        return False


def _applies(view: RunView, encoded: bytes, run: RunId) -> bool:
    try:
        link = read_link(encoded)
        if link.entry.run != run:
            return False
        view.apply(link)
    except BadEntry:
        return False
    return True


def _pass(point: str) -> None:
    return None


# --- a coordinator's store -------------------------------------------------------------------------------


def repair_store(mending: Repairing, path: Path) -> str:
    """A new store of every entry and kept value that holds, from the damaged one and all copies of the logs. One that
    would lack entries takes the damaged one's place only where the run's other coordinators give them again: nodes
    have them, and a coordinator that wrote others instead would break the run."""
    rows = list(rows_in(path))
    runs = sorted({run for run, _ in rows} | mending.runs())
    fresh = path.with_name("store.mended")
    fresh.unlink(missing_ok=True)
    told, whole, lacking = [], True, []
    with contextlib.closing(SqlLogStore(f"sqlite:///{fresh}")) as store:
        for run in runs:
            mine: dict[int, list[bytes]] = {}
            for found, entry in rows:
                if found == run:
                    mine.setdefault(read_link(entry).entry.position, []).append(entry)
            entries = mending.entries(run, [_by_position(mine)])
            for position, entry in enumerate(entries):
                store.append(run, position, entry)
            lost = max(mine, default=-1) + 1 - len(entries)
            words = f"run {run[:12]}: {len(entries)} entries"
            if lost > 0:
                whole = False
                gives = _is_kept_by_majority(store, run)
                words += f", {lost} lost" + (": the other coordinators give them again" if gives else "")
                lacking += [] if gives else [run]
            told.append(words)
        for run, key, value in kept_in(path):
            store.keep(run, key, value)
        for run in runs:
            told += [f"{run[:12]}: {FORGETFUL}"] if _keep_its_silence(store, run) else []
    if lacking:
        fresh.unlink()
        return f"left as it is, for entries would be lost ({'; '.join(told)}): name a home that has them with --from"
    path.rename(path.with_name("store.damaged"))
    fresh.rename(path)
    return ("repaired: " if whole else "") + "; ".join(told)


def _is_kept_by_majority(store: SqlLogStore, run: RunId) -> bool:
    genesis = genesis_of(list(store.read(run, 0, 1)))
    return genesis is not None and bool(recipe_in_log(genesis.recipe).membership.coordinators)


def _keep_its_silence(store: SqlLogStore, run: RunId) -> bool:
    """Where a majority keeps a run, and what this voter of it promised is lost: see that it does not vote as one that
    never promised anything. True if that was needed."""
    if not _is_kept_by_majority(store, run) or is_record(store.kept(run, RECORD).get(RECORD, FORGOTTEN)):
        return False
    store.keep(run, RECORD, FORGOTTEN)
    return True


def _by_position(found: dict[int, list[bytes]]) -> list[bytes]:
    last = max(found, default=-1)
    return [found.get(position, [b""])[0] for position in range(last + 1)]


def rows_in(path: Path) -> Iterator[tuple[RunId, bytes]]:
    """Every entry that can still be read out of a damaged store, by what the entry itself says."""
    seen: set[bytes] = set()
    for order in ("ASC", "DESC"):
        for (entry,) in _rows(path, f"SELECT entry FROM shoal_entries ORDER BY rowid {order}"):  # noqa: S608
            if isinstance(entry, bytes) and entry not in seen:
                seen.add(entry)
                with contextlib.suppress(BadEntry):
                    yield read_link(entry).entry.run, entry


def kept_in(path: Path) -> Iterator[tuple[RunId, str, bytes]]:
    """Every kept value that is still what was kept."""
    seen: set[tuple[object, object]] = set()
    for order in ("ASC", "DESC"):
        command = f"SELECT run, key, value, checksum FROM shoal_kept ORDER BY rowid {order}"  # noqa: S608
        for run, key, value, known in _rows(path, command):
            if not (isinstance(run, str) and isinstance(key, str) and isinstance(value, bytes)):
                continue
            if (run, key) not in seen and value_checksum(RunId(run), key, value) == known:
                seen.add((run, key))
                yield RunId(run), key, value


def _rows(path: Path, command: str) -> Iterator[tuple[object, ...]]:
    """The rows up to where the file cannot be read."""
    with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(path)) as database:
        database.text_factory = lambda data: data.decode("utf-8", "replace")
        cursor = database.execute(command)
        while True:
            row = cursor.fetchone()
            if row is None:
                return
            yield row
