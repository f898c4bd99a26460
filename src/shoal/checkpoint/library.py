"""The checkpoints that one machine can begin a run from: those of its own runs, and those it imported.

In flow a log store and the runs' blobs; out flow vertices, their logs and their states. Invariant: a state that leaves
here has the hash that its log names, rebuilt from an earlier one where its own blob is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId, RunId
from shoal.base.logstore import LogStore
from shoal.checkpoint.archive import ChunkArchive
from shoal.checkpoint.dag import Dag, make_dag
from shoal.checkpoint.vertices import Vertex, vertices_of
from shoal.replica.blobs import BlobStore
from shoal.replica.sharded import fold_stored
from shoal.replica.state import State, decode_state, state_hash
from shoal.runlog.entries import Genesis
from shoal.runlog.view import RunView, SavedState, Step, verify_log
from shoal.strategy.recipe import recipe_in_log

IMPORTED = RunId("imported")
"""The room of what came from elsewhere: its kept values name, by run, the blob of a log."""
LOG_PREFIX = "log."
_ENTRY_BYTES = 4


class Rooms(Protocol):
    """Where the blobs of a run lie."""

    def __call__(self, run: RunId, /) -> BlobStore: ...


@dataclass(frozen=True, slots=True)
class Library:
    store: LogStore
    rooms: Rooms
    followed: Callable[[list[bytes]], Iterable[bytes]] = iter
    """A log's entries as they are checked, for whoever wants to tell how far that is."""

    def logs(self) -> dict[RunId, list[bytes]]:
        """Every log here, by run: own ones, and of imported runs what came with their checkpoints."""
        own = {run: list(self.store.read(run)) for run in self.store.runs()}
        return {**self._imported(), **own}

    def dag(self) -> Dag:
        """Raises SH-LOG-01 where a log does not hold."""
        return make_dag(
            vertex
            for run, log in sorted(self.logs().items())
            for vertex in vertices_of(self.followed(log), run)
        )

    def room_of(self, run: RunId) -> BlobStore:
        """Where a run's blobs are: its own room, or that of imports."""
        return self.rooms(run if run in self.store.runs() else IMPORTED)

    def state_of(self, vertex: Vertex) -> State:
        """A vertex's state, checked. Raises SH-CKPT-02 or SH-BLOB-02."""
        view = self.view_of(vertex.run)
        state = state_at(view, vertex, self.room_of(vertex.run))
        if state_hash(state) != vertex.model:
            raise ShoalError(
                "SH-LOG-05",
                f"checkpoint {vertex.id[:12]} has state {state_hash(state)[:16]}, its log says {vertex.model[:16]}",
                "find the damage: shoal ckpt verify",
            )
        return state

    def view_of(self, run: RunId) -> RunView:
        """A run as its log tells it. Raises SH-LOG-01."""
        view, finding = verify_log(self.followed(self.log_of(run)), run)
        if finding is not None:
            what = f"run {run[:12]}: entry {finding.position} {finding.what}"
            raise ShoalError("SH-LOG-01", what, "see where it breaks: shoal log verify")
        return view

    def log_of(self, run: RunId) -> list[bytes]:
        own = list(self.store.read(run)) if run in self.store.runs() else []
        return own or self._imported().get(run, [])

    def stored(self, vertex: Vertex) -> bool:
        """True if the state's own snapshot is here, as a blob or as chunks."""
        room = self.room_of(vertex.run)
        return room.has(vertex.snapshot) or ChunkArchive(room.disk).has(vertex.snapshot)

    def add(self, run: RunId, entries: list[bytes], blobs: list[bytes]) -> None:
        """Take what came from elsewhere; everything must have been checked. A longer log replaces a shorter one."""
        room = self.rooms(IMPORTED)
        for blob in blobs:
            room.put(blob)
        if len(entries) > len(self._imported().get(run, [])):
            self.store.keep(IMPORTED, f"{LOG_PREFIX}{run}", room.put(pack_log(entries)).encode())

    def imported_blobs(self) -> set[BlobId]:
        """The blobs that hold imported logs."""
        return {BlobId(value.decode()) for value in self.store.kept(IMPORTED, LOG_PREFIX).values()}

    def _imported(self) -> dict[RunId, list[bytes]]:
        room = self.rooms(IMPORTED)
        named = self.store.kept(IMPORTED, LOG_PREFIX)
        return {
            RunId(key.removeprefix(LOG_PREFIX)): unpack_log(room.get(BlobId(value.decode())))
            for key, value in named.items()
        }


def pack_log(entries: list[bytes]) -> bytes:
    """Entries as one piece of bytes: each after its length."""
    return b"".join(len(entry).to_bytes(_ENTRY_BYTES, "little") + entry for entry in entries)


def unpack_log(data: bytes) -> list[bytes]:
    """The entries in such a piece; what is cut off at the end is left out, and the chain shows it."""
    entries, at = [], 0
    while at + _ENTRY_BYTES <= len(data):
        size = int.from_bytes(data[at : at + _ENTRY_BYTES], "little")
        entries.append(data[at + _ENTRY_BYTES : at + _ENTRY_BYTES + size])
        at += _ENTRY_BYTES + size
    return entries


def state_at(view: RunView, vertex: Vertex, room: BlobStore) -> State:
    """The state of a vertex, from its snapshot or folded from an earlier one."""
    genesis = view.genesis
    assert genesis is not None
    archive = ChunkArchive(room.disk)

    def has(blob: BlobId) -> bool:
        return room.has(blob) or archive.has(blob)

    def read(blob: BlobId) -> bytes:
        return room.get(blob) if room.has(blob) else archive.get(blob)

    if has(vertex.snapshot):
        return decode_state(read(vertex.snapshot), genesis.layout)
    start, steps = _way_to(view, vertex, has)
    rules = recipe_in_log(genesis.recipe).strategy.fold_rules()
    state = decode_state(read(start.blob), genesis.layout)
    for step in steps:
        state = fold_stored(state, step, room.get, rules)
    return state


def _way_to(view: RunView, vertex: Vertex, has: Callable[[BlobId], bool]) -> tuple[SavedState, list[Step]]:
    """The nearest earlier state that is stored with every update up to the vertex."""
    for saved in sorted(view.snapshots, key=lambda saved: -saved.at):
        if saved.at >= vertex.at or not (view.stands(saved.at) and vertex.stands and has(saved.blob)):
            continue
        steps = [step for step in view.path if saved.at < step.position <= vertex.at]
        if all(has(blob) for step in steps for blob, _, _ in step.sources):
            return saved, steps
    raise ShoalError(
        "SH-CKPT-02",
        f"the state of checkpoint {vertex.id[:12]} (run {vertex.run[:12]}, position {vertex.at}) is not stored",
        "take a later checkpoint, or import a copy: shoal ckpt import",
    )


def genesis_of(view: RunView) -> Genesis:
    assert view.genesis is not None, "a verified log has a genesis entry"
    return view.genesis
