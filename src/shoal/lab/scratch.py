"""Folders for scratch files, of which none is left for good.

In flows what a folder is for; out flows the folder, until its owner is done with it. Invariant: who makes a folder
first removes those whose owners were killed; never one whose owner lives, nor another user's, nor one without a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "shoal-lab-"
LOCK = ".owned"
"""A file in each folder, which its owner holds: the system lets go of it when the owner ends, however that comes."""


@contextlib.contextmanager
def scratch(what: str = "", place: Path | None = None) -> Iterator[Path]:
    """A new folder in this place (default: where the system has such folders), until the block is left."""
    place = place or Path(tempfile.gettempdir())
    remove_ownerless(place)
    with tempfile.TemporaryDirectory(prefix=PREFIX + what, dir=place) as name, _owned(Path(name)):
        yield Path(name)


def remove_ownerless(place: Path) -> None:
    """Remove what killed owners have left in this place."""
    for folder in sorted(place.glob(f"{PREFIX}*")):
        # Its owner lives, somebody else removes it just now, or it is not for this user to open.
        with contextlib.suppress(OSError):
            about = folder.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                with open(folder / LOCK, "rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. It has its name only once it is held, so that nobody finds it free before."""
    unnamed = folder / f"{LOCK}-soon"
    with open(unnamed, "xb") as lock:
        with contextlib.suppress(OSError):  # A file system without locks: then nobody else removes it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            unnamed.rename(folder / LOCK)
        yield
