"""A parent run and two regions as real processes: each region's hub is a coordinator of its own, one is killed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from shoal.apps.home import Home
from shoal.base.ids import RunId
from shoal.coordinator.founding import FOUNDING
from shoal.replica.blobs import BlobStore
from shoal.runlog.view import verify_log
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.locks import held
from shoal.worlds.real.sqlstore import SqlLogStore

from .fleet import TINY, Fleet
from .processes import Child, free_port, run_shoal
from .referee import check_log, end_run

STRATEGY: dict[str, Any] = {
    "preset": "halos",
    "schedule": {"steps": 4, "overlap": 8},
    "seal": {"min_interval_s": 0.3},
    "region": {"schedule": {"steps": 2}, "seal": {"kind": "all-or-deadline", "deadline_s": 4.0}},
}


class Hub:
    """One region's hub, through its lives, and its member."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self._fleet, self.name = fleet, name
        self.home = fleet.home_of(name)
        self._ports = [str(free_port()), str(free_port())]
        self._ready = 0
        self.child: Child | None = None

    def start(self) -> None:
        control, blobs = self._ports
        place = ["--home", str(self.home), "--control-port", control, "--blob-port", blobs]
        arguments = [
            "hub",
            self._fleet.ticket,
            "--name",
            self.name,
            "--port",
            "0",
            "--advertise",
            "127.0.0.1",
        ]
        self.child = self._fleet._start(self.name, [*arguments, *place], "")

    def ready(self) -> str:
        """Wait for it; the region's ticket."""
        self._fleet.until(lambda: self._lines().count("ready") > self._ready, 40, f"{self.name} is ready")
        self._ready = self._lines().count("ready")
        return [line.split()[2] for line in self._lines() if line.startswith("  shoal join ")][-1]

    def _lines(self) -> list[str]:
        return self.child.out.read_text().splitlines() if self.child else []

    @property
    def run(self) -> RunId:
        return RunId([line.split()[1] for line in self._lines() if line.startswith("  run ")][-1])

    def cut_off_founding(self) -> Path:
        """Leave in its home what a kill leaves of a region that was being founded; its folder."""
        home, run = Home(self.home), RunId("c" * 32)
        folder = home.coordinator / "runs" / run
        BlobStore(FileDisk(folder), lambda point: None).put(b"of no run")
        (folder / FOUNDING).touch()
        with closing(SqlLogStore(home.store_url)) as store:
            store.keep(run, FOUNDING, b"")
        return folder

    def entries(self) -> list[bytes]:
        store = SqlLogStore(Home(self.home).store_url)
        try:
            return list(store.read(self.run))
        finally:
            store.close()


def test_hubs_carry_their_regions_work_and_come_back_after_a_kill(fleet: Fleet) -> None:
    membership = {**TINY["membership"], "min_nodes": 2}
    fleet.serve({**TINY, "strategy": STRATEGY, "membership": membership})
    hubs = [Hub(fleet, name) for name in ("north", "south")]
    for hub in hubs:
        hub.start()
    members = [fleet.join(f"{hub.name}-1", ticket=hub.ready()) for hub in hubs]
    fleet.nodes.clear()  # The members of the parent run are the hubs.
    fleet.contributes("north")
    fleet.contributes("south")
    lost = run_shoal(["join", fleet.ticket, "--home", str(fleet.home_of("lost")), "--yes"])
    assert lost.status == 1 and "SH-JOIN-12" in lost.err and "shoal hub" in lost.err

    with held(Home(hubs[0].home).coordinator) as mine:
        assert not mine, "nobody exchanges a region's store under its hub"

    region, before = hubs[0].run, len(hubs[0].entries())
    assert hubs[0].child is not None
    hubs[0].child.kill()
    fleet.seals_after(fleet.length() - 1, count=2)  # The other region goes on.
    cut_off = hubs[0].cut_off_founding()
    hubs[0].start()
    hubs[0].ready()
    assert hubs[0].run == region, "the same region"
    assert not cut_off.exists(), "what was being founded when a kill came"
    fleet.contributes("north", after=fleet.length())

    fleet.nodes |= {hub.name: hub.child for hub in hubs if hub.child is not None}
    check_log(end_run(fleet))  # Waits for the hubs, which wait for their members.
    for hub in hubs:
        view, finding = verify_log(hub.entries())
        assert finding is None and view.stopped is not None and "parent run has ended" in view.stopped
        assert any(step.graft for step in view.path) and view.genesis is not None
        assert view.genesis.parent == fleet.run and view.best_start().at == view.at
    assert len(hubs[0].entries()) > before
    assert all(member.ended(60) == 0 for member in members), "a region ends with its parent"
