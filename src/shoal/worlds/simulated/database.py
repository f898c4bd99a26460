"""A database that several simulated coordinators share: it never dies, but they may be cut off from it.

In flow the calls of a `SharedStore`; out flow their answers, and the referee's look at every entry. Invariant: the lead
changes hands by the database's own clock, and a handle that has lost it writes nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.base.lead import Candidate, Standing, lead_lost
from shoal.coordinator.claims import PREFIX as CLAIM_PREFIX
from shoal.runlog.files import FileLogStore
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.referee import Referee


class SimDatabase:
    """The one truth, and who may change it."""

    def __init__(self, loop: SimLoop, referee: Referee, run: RunId) -> None:
        self.disk = SimDisk()
        self.rows = FileLogStore(self.disk, lambda point: None)
        self.referee = referee
        self.unreachable: set[str] = set()
        """Hosts that cannot reach it now."""
        self.leader = ""
        self.epoch = 0
        self.changes = 0
        """How often the lead went from one host to another."""
        self._loop, self._run = loop, run
        self._until = 0.0
        self._candidates: dict[str, Candidate] = {}

    def stand(self, me: Candidate, lease_s: float, epoch: int) -> tuple[int, Standing]:
        if epoch and epoch != self.epoch:
            raise lead_lost(self.leader)
        free = self._until <= self._loop.time() or self.leader == me.name
        if free:
            if not epoch:
                self._take(me.name)
            self._until = self._loop.time() + lease_s
        self._candidates[me.name] = me
        others = tuple(c for c in self._candidates.values() if c.name != me.name)
        leader = self._candidates.get(self.leader, Candidate(self.leader))
        return self.epoch if free else epoch, Standing(leads=free, leader=leader, others=others)

    def _take(self, name: str) -> None:
        self.changes += bool(self.leader) and self.leader != name
        self.epoch, self.leader = self.epoch + 1, name
        self._loop.trace("lead", name, self.epoch)
        rows, run = self.rows, self._run
        self.referee.restarted(list(rows.read(run)), set(rows.kept(run, CLAIM_PREFIX)))


class DatabaseHandle:
    """One coordinator's connection to it, from start to death."""

    def __init__(self, database: SimDatabase, host: str) -> None:
        self._database, self._host = database, host
        self._epoch = 0

    def stand(self, candidate: Candidate, lease_s: float) -> Standing:
        self._epoch, standing = self._reached().stand(candidate, lease_s, self._epoch)
        return standing

    def runs(self) -> list[RunId]:
        return self._reached().rows.runs()

    def append(self, run: RunId, position: int, entry: bytes) -> None:
        database = self._leading()
        database.rows.append(run, position, entry)
        database.referee.appended(position, entry)

    def length(self, run: RunId) -> int:
        return self._reached().rows.length(run)

    def read(self, run: RunId, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        return self._reached().rows.read(run, start, stop)

    def keep(self, run: RunId, key: str, value: bytes) -> None:
        self._leading().rows.keep(run, key, value)

    def kept(self, run: RunId, prefix: str) -> dict[str, bytes]:
        return self._reached().rows.kept(run, prefix)

    def drop(self, run: RunId, key: str) -> None:
        self._leading().rows.drop(run, key)

    def _reached(self) -> SimDatabase:
        if self._host in self._database.unreachable:
            raise ShoalError("SH-LOG-04", "the database does not answer", "check that it runs")
        return self._database

    def _leading(self) -> SimDatabase:
        database = self._reached()
        if self._epoch != database.epoch:
            raise lead_lost(database.leader)
        return database
