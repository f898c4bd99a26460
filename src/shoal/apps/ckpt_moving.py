"""Checkpoints on the move: out to folders and places, in from them, and off the disk where no rule keeps them.

In flow vertices and addresses; out flow what was written, taken or removed. Invariant: what leaves was checked against
the log before, and what comes in is checked before any of it is kept.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shoal.apps.ckpt_reading import Opened
from shoal.apps.progress import BYTES, Bar, growing
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.checkpoint.archive import PINS, ChunkArchive
from shoal.checkpoint.folders import FORMS, read_folder, write_folder
from shoal.checkpoint.library import IMPORTED, genesis_of
from shoal.checkpoint.places import FolderPlace, open_place
from shoal.checkpoint.retention import kept_positions
from shoal.checkpoint.starting import require_quorum
from shoal.checkpoint.torrents import make_torrent
from shoal.checkpoint.vertices import Vertex, vertices_of
from shoal.replica.state import encode_state
from shoal.strategy.recipe import Retention, recipe_in_log


def export_vertex(
    here: Opened, vertex: Vertex, to: str, form: str, *, data: bool, unattested: bool
) -> dict[str, Any]:
    """Write a checkpoint to a place. Raises SH-CKPT-02, -04 or -06, SH-DISK-02."""
    if form not in FORMS:
        raise ShoalError("SH-CKPT-06", f"there is no format {form!r}", f"one of: {', '.join(FORMS)}")
    if not unattested:
        require_quorum(vertex)
    state = here.library.state_of(vertex)
    entries = here.library.log_of(vertex.run)
    bar = Bar()
    place, room = open_place(to, partial(_show_bytes, bar)), here.room(vertex.run)

    def write(folder: Path) -> None:
        size = 4 * state.layout.numel * (1 + len(state.slots)) + sum(map(len, entries))
        with growing(folder, size):
            write_folder(folder, form, vertex, entries, state, room, data=data)

    if isinstance(place, FolderPlace):
        write(Path(to.removeprefix("file://")))
        address = to
    else:
        with tempfile.TemporaryDirectory(prefix="shoal-export-") as made:
            folder = Path(made) / vertex.id
            write(folder)
            with bar:
                address = place.send(folder)
    told = {"vertex": vertex.id, "run": vertex.run, "position": vertex.at, "model": vertex.model}
    return {**told, "format": form, "address": address}


def _show_bytes(bar: Bar, done: int, total: int) -> None:
    bar.at(done, total, BYTES)


def write_torrent(
    folder: Path, file: Path, web_seeds: Sequence[str], trackers: Sequence[str]
) -> dict[str, Any]:
    """Make a torrent of an exported folder. Raises SH-CKPT-06 where it is not a local one."""
    if not folder.is_dir():
        raise ShoalError("SH-CKPT-06", f"{folder} is no local folder", "export to a folder first")
    with Bar() as bar:
        made = make_torrent(
            folder.absolute(), web_seeds, trackers, lambda done, total: bar.at(done, total, "pieces")
        )
    file.write_bytes(made.data)
    return {"torrent": str(file), "magnet": made.magnet}


def import_from(here: Opened, source: str) -> dict[str, Any]:
    """Take a checkpoint in. Raises SH-CKPT-05 unless it is what its log says, SH-CKPT-06 if it cannot be had."""
    bar = Bar()
    place = open_place(source, partial(_show_bytes, bar))
    landing = Path(tempfile.mkdtemp(prefix="shoal-import-"))
    try:
        if isinstance(place, FolderPlace):
            found = read_folder(Path(source.removeprefix("file://")))
        else:
            with bar:
                place.bring(landing)
            found = read_folder(landing)
    finally:
        shutil.rmtree(landing, ignore_errors=True)
    vertex = found.vertex
    if vertex.run not in here.store.runs():
        here.library.add(vertex.run, found.entries, [encode_state(found.state), *found.data])
    else:
        here.library.rooms(vertex.run).put(encode_state(found.state))
    signed, of = vertex.quorum.part()
    told = {"vertex": vertex.id, "run": vertex.run, "position": vertex.at, "model": vertex.model}
    return {**told, "signed": signed, "of": of, "quorum": vertex.quorum.reached()}


def prune_states(here: Opened, prefix: str, given: dict[str, int | None], *, dry_run: bool) -> dict[str, Any]:
    """Remove the snapshots that no rule keeps, of runs whose id begins so."""
    removed: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for run in here.store.runs():
        if run.startswith(prefix) and run != IMPORTED:
            _prune_run(here, run, given, removed, kept, dry_run=dry_run)
    freed = sum(item["size_bytes"] for item in removed)
    return {"removed": removed, "kept": kept, "freed_bytes": freed, "dry_run": dry_run}


def _prune_run(
    here: Opened,
    run: RunId,
    given: dict[str, int | None],
    removed: list[dict[str, Any]],
    kept: list[dict[str, Any]],
    *,
    dry_run: bool,
) -> None:
    view, disk = here.library.view_of(run), here.disk(run)
    rules = recipe_in_log(genesis_of(view).recipe).storage.retention
    rules = Retention.model_validate(
        rules.model_dump() | {name: value for name, value in given.items() if value is not None}
    )
    reasons, pins = kept_positions(view, rules), set(disk.list(PINS))
    vertices = [v for v in vertices_of(here.library.log_of(run), run) if here.library.stored(v)]
    stay: dict[str, str] = {}
    for vertex in vertices:
        reason = reasons.get(vertex.at) if vertex.stands else None
        if vertex.snapshot in pins:
            reason = reason or "pinned"
        if vertex.snapshot in view.needed_blobs():
            reason = reason or "joiners begin there"
        if reason:
            stay[vertex.snapshot] = reason
    for vertex in vertices:
        told = {"vertex": vertex.id, "run": run, "position": vertex.at, "size_bytes": vertex.size_bytes}
        if vertex.snapshot in stay:
            kept.append({**told, "reason": stay[vertex.snapshot]})
            continue
        removed.append(told)
        if not dry_run:
            here.room(run).discard(vertex.snapshot)
    if not dry_run:
        archive = ChunkArchive(disk)
        archive.keep_only({blob for blob in archive.blobs() if blob in stay})
