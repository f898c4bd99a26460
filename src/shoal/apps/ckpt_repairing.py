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
from dataclasses import dataclass
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
from shoal.worlds.real.sqlstore import LENGTH, SqlLogStore, value_checksum

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
                if path.resolve() != (self._root / "store.sqlite").resolve():  # That is the damaged one.
                    yield [entry for found, entry in rows_in(_Salvage(path)) if found == run]

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
    found = _remains_of(path)
    folders = () if found.readable else path.parent.glob("runs/*/")
    told_of = {*found.entries, *found.lengths, *found.noted}
    named = {*told_of, *mending.runs(), *(RunId(folder.name) for folder in folders)}
    sound = {run: mending.entries(run, [_by_position(found.entries.get(run, {}))]) for run in sorted(named)}
    whole_table = found.readable and found.taken_into(sound) >= found.rows
    fresh = path.with_name("store.mended")
    fresh.unlink(missing_ok=True)
    told, whole, lacking = [], True, []
    with contextlib.closing(SqlLogStore(f"sqlite:///{fresh}")) as store:
        for run, entries in sound.items():
            for position, entry in enumerate(entries):
                store.append(run, position, entry)
            by_index = 0 if whole_table else found.lengths.get(run, 0)
            lost = max(found.noted.get(run, 0), by_index) - len(entries)
            # Where nobody can tell how long the log was, a copy must have all that there is of it.
            short = not found.readable and len(mending.entries(run)) < max(1, len(entries))
            if not entries and lost <= 0 and not short:
                continue  # A name that only a damaged row or an index has.
            words = f"run {run[:12]}: {len(entries)} entries"
            if lost > 0 or short:
                whole = False
                gives = _is_kept_by_majority(store, run)
                words += f", {lost if lost > 0 else 'perhaps more'} lost"
                words += ": the other coordinators give them again" if gives else ""
                lacking += [] if gives else [run]
            elif not found.readable:
                words += ", as far as the copies go"
            told.append(words)
        for run, key, value in kept_in(_Salvage(path)):
            if key != LENGTH:  # The new store's own is right.
                store.keep(run, key, value)
        for run in sound:
            told += [f"{run[:12]}: {FORGETFUL}"] if _keep_its_silence(store, run) else []
    if lacking or not told:
        fresh.unlink()
        what = "; ".join(told) or "no run can be read in it"
        return f"left as it is, for entries would be lost ({what}): name a home that has them with --from"
    path.rename(path.with_name("store.damaged"))
    fresh.rename(path)
    return ("repaired: " if whole else "") + "; ".join(told)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remains:
    """What a damaged store still says of its logs."""

    entries: dict[RunId, dict[int, list[bytes]]]
    """By the run and position that they themselves say."""
    lengths: dict[RunId, int]
    """How long each log was at least, also where its last entries are no entries any more."""
    noted: dict[RunId, int]
    """How long each log was by the store's own note."""
    rows: int
    """How many there are by the index, which rots apart from the entries."""
    readable: bool
    """Whether everything was read to its end: else there may have been more."""

    def taken_into(self, sound: dict[RunId, list[bytes]]) -> int:
        """How many of its own entries have found their place."""
        mine = {entry for log in self.entries.values() for entries in log.values() for entry in entries}
        return sum(entry in mine for log in sound.values() for entry in log)


def _remains_of(path: Path) -> _Remains:
    salvage = _Salvage(path)
    entries: dict[RunId, dict[int, list[bytes]]] = {}
    for run, entry in rows_in(salvage):
        entries.setdefault(run, {}).setdefault(read_link(entry).entry.position, []).append(entry)
    lengths: dict[RunId, int] = {}
    rows = 0
    # The primary key's index answers this alone.
    command = "SELECT run, MAX(position), COUNT(*) FROM shoal_entries GROUP BY run"
    for name, last, count in salvage.rows(command):
        if isinstance(name, str) and isinstance(last, int) and isinstance(count, int):
            lengths[RunId(name)] = last + 1
            rows += count
        else:
            salvage.failed = True
    if salvage.failed:
        for run, log in entries.items():
            lengths[run] = max(lengths.get(run, 0), *(position + 1 for position in log))
    noted = {run: int(value) for run, key, value in kept_in(_Salvage(path)) if key == LENGTH}
    return _Remains(entries=entries, lengths=lengths, noted=noted, rows=rows, readable=not salvage.failed)


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


class _Salvage:
    """Reads a damaged store as far as that goes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.failed = False
        """Whether anything could not be read to its end."""

    def rows(self, command: str) -> Iterator[tuple[object, ...]]:
        """The rows up to where the file cannot be read."""
        try:
            with contextlib.closing(sqlite3.connect(self._path)) as database:
                database.text_factory = lambda data: data.decode("utf-8", "replace")
                yield from database.execute(command)
        except (
            sqlite3.DatabaseError,
            UnicodeDecodeError,
        ):  # The latter for a message that quotes rotten text.
            self.failed = True


def rows_in(store: _Salvage) -> Iterator[tuple[RunId, bytes]]:
    """Every entry that can still be read out of a damaged store, by what the entry itself says."""
    seen: set[bytes] = set()
    for order in ("ASC", "DESC"):
        for (entry,) in store.rows(f"SELECT entry FROM shoal_entries ORDER BY rowid {order}"):  # noqa: S608
            if isinstance(entry, bytes) and entry not in seen:
                seen.add(entry)
                with contextlib.suppress(BadEntry):
                    yield read_link(entry).entry.run, entry


def kept_in(store: _Salvage) -> Iterator[tuple[RunId, str, bytes]]:
    """Every kept value that is still what was kept."""
    seen: set[tuple[object, object]] = set()
    for order in ("ASC", "DESC"):
        command = f"SELECT run, key, value, checksum FROM shoal_kept ORDER BY rowid {order}"  # noqa: S608
        for run, key, value, known in store.rows(command):
            if not (isinstance(run, str) and isinstance(key, str) and isinstance(value, bytes)):
                continue
            if (run, key) not in seen and value_checksum(RunId(run), key, value) == known:
                seen.add((run, key))
                yield RunId(run), key, value
