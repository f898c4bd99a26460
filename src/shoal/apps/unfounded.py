"""What a kill has left of a run that was being founded: blobs that no log leads to.

In flows a coordinator's home as it lies on disk; out flows the same without them. Invariant: nothing goes but what its
founder has marked as not in any log, and only while nobody is at work in the home, who might be founding it now.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path

from shoal.apps.home import Home
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.coordinator.founding import FOUNDING, discard
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
            known = store.runs()
        for mark in marks:
            if RunId(mark.parent.name) not in known:
                _clear(mark.parent)


def _marks(home: Home) -> list[Path]:
    return sorted(home.coordinator.glob(f"runs/*/{FOUNDING}"))


def _clear(folder: Path) -> None:
    told = {"run": folder.name[:12], "cause": "its founding was cut off, and no log has it"}
    try:
        discard(BlobStore(FileDisk(folder), lambda point: None))
    except ShoalError as error:
        log.warning("unfounded_run_left", extra={**told, "code": error.code, "cause": error.cause})
        return
    with contextlib.suppress(OSError):  # Not empty: whatever else is there is not of the founding.
        (folder / "blobs").rmdir()
        folder.rmdir()
    log.info("unfounded_run_removed", extra=told)
