"""Folders that a process works in: each has a file `lock`, which the process holds.

In flow folders; out flows whether one may work there. Invariant: the system lets go of a lock when its process ends,
however that comes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from shoal.base.errors import ShoalError

LOCK, COORDINATOR = "lock", "coordinator.lock"


@contextlib.contextmanager
def held(folder: Path, *, shared: bool = False, name: str = LOCK) -> Iterator[bool]:
    """Hold the folder meanwhile, alone or beside others who share it; False if somebody else's hold forbids that.
    Raises SH-DISK-02 where nothing can be written."""
    try:
        file = open(folder / name, "ab")  # noqa: SIM115
    except OSError as error:
        cause = f"{folder / name} cannot be written: {error.strerror or error}"
        raise ShoalError("SH-DISK-02", cause, "check the folder's permissions and its disk") from error
    with file:
        yield _locked(file, shared)


@contextlib.contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Nobody may exchange files in the folder meanwhile. Raises SH-LOG-04 while somebody does."""
    with held(folder, shared=True) as mine:
        if not mine:
            raise ShoalError("SH-LOG-04", f"{folder} is being repaired", "start it again once that has ended")
        yield


@contextlib.contextmanager
def coordinating(folder: Path) -> Iterator[None]:
    """Be at work in a coordinator's folder, and the only coordinator there: those who share a store have a home each,
    whose name the lead goes by. Raises SH-SERVE-03 beside another one."""
    with at_work(folder), held(folder, name=COORDINATOR) as mine:
        if not mine:
            raise ShoalError(
                "SH-SERVE-03",
                f"another process coordinates the runs in {folder}",
                "stop that one, or give this one a home of its own",
            )
        yield


def _locked(file: BinaryIO, shared: bool) -> bool:
    """Hold the file until it is closed or this process ends."""
    if sys.platform == "win32":  # It has no such locks; two processes in one folder are their owner's care.
        return True
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
