"""Machines that were lent to a pool become regions by themselves, and one whose hub is killed gets another."""

from __future__ import annotations

import contextlib
import json
import socket

import psutil
import pytest

from shoal.apps.home import Home
from shoal.base.ids import NodeId
from shoal.runlog.entries import PlannedRegion, Regions
from shoal.runlog.view import RunView, verify_log
from shoal.worlds.real.sqlstore import SqlLogStore

from .fleet import START_S, TINY, Fleet
from .processes import Child, free_port, run_shoal
from .referee import check_log, end_run
from .test_regions import STRATEGY

MACHINES = {"north-1": "north", "north-2": "north", "south-1": "south", "south-2": "south"}


class LentFleet:
    """Machines that are lent, by name, and what the log says of them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.machines: dict[str, Child] = {}

    def lend(self, name: str, label: str) -> None:
        fleet, home = self._fleet, self._fleet.home / "coordinator"
        words = ["pool", "join", "--home", str(fleet.home_of(name)), "--region", label]
        words += ["--server", (home / "api-address").read_text().strip()]
        words += ["--token-file", str(home / "lend-token"), "--hub-address", f"127.0.0.1:{hub_port()}"]
        words += ["--", "--port", "0", "--bind", "127.0.0.1", "--name", name]
        self.machines[name] = fleet._start(name, words, "")

    def at_work(self) -> set[int]:
        """Every `shoal join` and `shoal hub` that is on, by its process id."""
        lent = [psutil.Process(child.process.pid) for child in self.machines.values()]
        return {on.pid for machine in lent for on in machine.children()}

    def name_of(self, node: NodeId) -> str:
        return next(name for name in MACHINES if self._fleet.node_id(name) == node)

    def names_of(self, region: PlannedRegion) -> list[str]:
        return sorted(self.name_of(node) for node in region.members)

    def decided(self) -> list[Regions]:
        """Every decision in the log, oldest first."""
        bodies = [link.entry.body for link in self._fleet.links()]
        return [body for body in bodies if isinstance(body, Regions)]

    def region_of(self, names: list[str], *, not_led_by: str = "") -> PlannedRegion:
        """Wait for a region of just these machines."""

        def found() -> PlannedRegion | None:
            latest = self.decided()[-1:]
            fitting = [item for body in latest for item in body.items if self.names_of(item) == names]
            return next((item for item in fitting if self.name_of(item.hub) != not_led_by), None)

        region: PlannedRegion = self._fleet.until(found, START_S, f"a region of {names}")
        return region

    def view_of(self, region: PlannedRegion) -> RunView:
        """The region's own log, as its hub's store has it."""
        root = self._fleet.home_of(self.name_of(region.hub)) / "regions"
        store = SqlLogStore(Home(root / f"{self._fleet.run}-{region.number}").store_url, create=False)
        try:
            (run,) = store.runs()
            view, finding = verify_log(store.read(run))
        finally:
            store.close()
        assert finding is None
        return view

    def trains(self, region: PlannedRegion) -> None:
        """Wait until all of its machines had a part in its own rounds."""

        def authors() -> set[NodeId]:
            steps = self.view_of(region).path
            return {update.claim.node for step in steps for update in step.updates}

        everybody = {*region.members}
        self._fleet.until(lambda: authors() == everybody, START_S, f"rounds of region {region.number}")


def hub_port() -> int:
    """The first of three that nobody listens on."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in (first + 1, first + 2):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


@pytest.mark.timeout(600)
def test_regions_form_and_a_killed_hub_has_an_heir(fleet: Fleet) -> None:
    port, membership = free_port(), {**TINY["membership"], "min_nodes": 2}
    fleet.serve({**TINY, "strategy": STRATEGY, "membership": membership}, port=port)
    lent = LentFleet(fleet)
    for name, label in MACHINES.items():
        lent.lend(name, label)
    north, south = lent.region_of(["north-1", "north-2"]), lent.region_of(["south-1", "south-2"])
    for region in (north, south):
        fleet.contributes(lent.name_of(region.hub))
        lent.trains(region)
        assert "by their owners' word" in region.reason and len(region.heirs) == 1
    listed = json.loads(run_shoal(["pool", "list", "--home", str(fleet.home), "--json"]).out)
    assert {one["node"]: (one["region"], one["leads"]) for one in listed} == {
        node: (region.number, node == region.hub) for region in (north, south) for node in region.members
    }

    before, at_work = lent.decided(), lent.at_work()
    assert fleet.coordinator is not None
    fleet.coordinator.kill()
    fleet.serve(port=port)
    restarted_at = fleet.length()
    for region in (north, south):
        fleet.contributes(lent.name_of(region.hub), after=restarted_at)
    assert (lent.decided(), lent.at_work()) == (before, at_work), "everybody goes on as before"

    hub, killed_at = lent.name_of(north.hub), fleet.length()
    heir = next(name for name in lent.names_of(north) if name != hub)
    lent.machines.pop(hub).kill()  # What it had on dies with it.
    fleet.seals_after(killed_at, count=2)  # The other region goes on.
    taken_over = lent.region_of([heir])
    assert taken_over.number > north.number and lent.name_of(taken_over.hub) == heir
    assert any(hub_gone(body, north) for body in lent.decided())
    fleet.contributes(heir, after=killed_at)
    lent.trains(taken_over)

    lent.lend(hub, MACHINES[hub])  # It is back, as a member of the region that the heir leads.
    again = lent.region_of(["north-1", "north-2"])
    assert (again.number, again.hub) == (taken_over.number, taken_over.hub)
    lent.trains(again)
    assert lent.region_of(["south-1", "south-2"]).number == south.number, "nobody else was moved"

    shown = run_shoal(["log", "show", fleet.run, *fleet.place]).out
    decisions = [line for line in shown.splitlines() if "  regions  " in line]
    assert any(f"its heir is {taken_over.hub[:8]}" in line for line in decisions), "\n".join(decisions)
    links = end_run(fleet)
    assert not any(b"shoal1-" in link.encoded for link in links), "a region's ticket is in no log"
    check_log(links)


def hub_gone(body: Regions, region: PlannedRegion) -> bool:
    return f"the hub of region {region.number}, {region.hub[:8]}, was silent" in body.reason
