"""Homes as a kill leaves them in the midst of a founding."""

from __future__ import annotations

import shutil
from pathlib import Path

from shoal.apps.home import Home
from shoal.base.ids import RunId
from shoal.coordinator.founding import FOUNDING
from shoal.worlds.real.sqlstore import SqlLogStore

MADE, UNKNOWN, READY, APPENDED, DROPPED = "made", "unknown", "ready", "appended", "dropped"
"""When a test says; the store has not heard of the run, has all but its genesis, has that, has dropped its mark."""
UNFOUNDED = (UNKNOWN, MADE, READY)
FOUNDED = (APPENDED, DROPPED)


class KilledStore(SqlLogStore):
    """The store of a home in which a run is founded; at one moment the home is copied as it is then."""

    def __init__(self, folder: Path, moment: str) -> None:
        self.home, self.left = Home(folder / "whole"), Home(folder / "left")
        self.home.coordinator.mkdir(parents=True)
        self._moment = moment
        super().__init__(self.home.store_url)

    def reached(self, moment: str) -> None:
        if moment == self._moment:
            shutil.copytree(self.home.root, self.left.root)

    def keep(self, run: RunId, key: str, value: bytes) -> None:
        if key == FOUNDING:
            self.reached(UNKNOWN)
        super().keep(run, key, value)

    def append(self, run: RunId, position: int, entry: bytes) -> None:
        if position == 0:
            self.reached(READY)
        super().append(run, position, entry)
        if position == 0:
            self.reached(APPENDED)

    def drop(self, run: RunId, key: str) -> None:
        super().drop(run, key)
        if key == FOUNDING:
            self.reached(DROPPED)

    def room(self, run: RunId) -> Path:
        """The folder that the kill has left of the run; in the home itself nothing of its founding is left."""
        assert not list(self.home.root.rglob(FOUNDING)) and not self.kept(run, FOUNDING)
        room = self.left.coordinator / "runs" / run
        assert (room / FOUNDING).exists()
        return room


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
