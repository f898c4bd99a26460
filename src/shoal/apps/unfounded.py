"""What a kill has left of a run that was being founded: blobs that no log leads to.

In flows the home of a coordinator, or of a region's, as it lies on disk; out flows the same without them. Invariant:
nothing goes but what the store knows as being founded and has no log of, and only while nobody is at work in the home,
who might be founding it now.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path

from shoal.apps.home import Home
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.coordinator.founding import FOUNDING, discard, unmark
from shoal.replica.blobs import BlobStore
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.locks import held
from shoal.worlds.real.sqlstore import SqlLogStore

log = logging.getLogger(__name__)


def clear_unfounded(home: Home, store_url: str) -> None:
    """Remove the blobs of runs that did not come to be, if this process is alone in the home; else a later start does.
    To be called before the process is at work there itself. What cannot be removed stays, and is told."""
    if sys.platform == "win32" or not _marks(home):  # There nobody could tell whether others are at work.
        return
    with held(home.coordinator) as alone:
        marks = _marks(home) if alone else []  # Looked for again: a founder may have ended just now.
        if not marks:
            return
        with contextlib.closing(SqlLogStore(store_url)) as store:
            for mark in marks:
                _settle(store, mark.parent)


def _marks(home: Home) -> list[Path]:
    return sorted(home.coordinator.glob(f"runs/*/{FOUNDING}"))


def _settle(store: SqlLogStore, folder: Path) -> None:
    run, room = RunId(folder.name), BlobStore(FileDisk(folder), lambda point: None)
    told = {"run": run[:12], "cause": "its founding was cut off, and no log has it"}
    try:
        if store.length(run):
            unmark(store, run, room)  # It was cut off when all was done.
            return
        if FOUNDING not in store.kept(run, FOUNDING) and room.used_bytes():
            return  # It is for another store to say whether they are anybody's.
        discard(store, run, room)
    except ShoalError as error:
        log.warning("unfounded_run_left", extra={**told, "code": error.code, "cause": error.cause})
        return
    for place in (folder / "blobs", folder):
        with contextlib.suppress(OSError):  # Not empty: whatever else is there is not of the founding.
            place.rmdir()
    log.info("unfounded_run_removed", extra=told)
