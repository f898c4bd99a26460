"""Lent machines on emulated lines: regions by the round trips that they measure, and an heir for a machine that falls
silent without dying."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.apps.home import Home
from shoal.base.ids import NodeId
from shoal.lab import Lab, parse_fleet
from shoal.lab.links import Power
from shoal.runlog.chain import Link, read_link
from shoal.runlog.entries import PlannedRegion, Regions
from shoal.wire.identity import Identity
from shoal.worlds.real.sqlstore import SqlLogStore

from .fleet import START_S, TINY, accepted_nodes
from .processes import eventually
from .test_regions import STRATEGY

FLEET = """
name: two coasts
step: 100 ms
hosts:
  - {name: coordinator, latency: 2 ms}
  - {name: west, count: 2, region: west, latency: 5 ms}
  - {name: east, count: 2, region: east, latency: 5 ms}
pairs:
  - {between: [west, east], rtt: 120 ms}
"""
UPLINKS = {"west-1": "200Mbit", "west-2": "20Mbit", "east-1": "200Mbit", "east-2": "20Mbit"}
PORT = 9000
LEASE_S = 4.0


class Machines:
    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab, self._folder = lab, folder
        self._home = Home(folder / "coordinator")

    def start(self, host: str, *words: str) -> None:
        command = ["env", "OMP_NUM_THREADS=1", sys.executable, "-m", "shoal.apps.cli", *words]
        with open(self._folder / f"{host}.log", "ab") as log:
            self._lab.start(host, command, output=log.fileno(), errors=log.fileno())

    def serve(self, recipe: dict[str, Any]) -> None:
        path = self._folder / "recipe.yaml"
        path.write_text(json.dumps(recipe))
        words = ["serve", "--home", str(self._home.root), "--recipe", str(path), "--host", "0.0.0.0"]
        self.start(
            "coordinator", *words, "--advertise", "coordinator", "--api-host", "0.0.0.0", "--api-plain"
        )
        self.until(lambda: "ready\n" in (self._folder / "coordinator.log").read_text(), "the coordinator")

    def lend(self, host: str, up: str) -> None:
        token = self._home.coordinator / "lend-token"
        words = ["pool", "join", "--home", str(self._folder / host), "--server", "http://coordinator:8470"]
        words += ["--token-file", str(token), "--hub-address", f"{host}:{PORT}", "--up", up]
        self.start(host, *words, "--", "--port", "0", "--advertise", host)

    def name_of(self, node: NodeId) -> str:
        keys = {host: self._folder / host / "node" / "key" for host in UPLINKS}
        return next(
            host
            for host, key in keys.items()
            if Identity(bytes.fromhex(key.read_text().strip())).node == node
        )

    def links(self) -> list[Link]:
        store = SqlLogStore(self._home.store_url, create=False)
        try:
            (run,) = store.runs()
            return [read_link(entry) for entry in store.read(run)]
        finally:
            store.close()

    def regions(self) -> dict[str, list[str]]:
        """By hub, who is in the regions now."""
        decided = [link.entry.body for link in self.links() if isinstance(link.entry.body, Regions)]
        items: tuple[PlannedRegion, ...] = decided[-1].items if decided else ()
        return {self.name_of(item.hub): sorted(map(self.name_of, item.members)) for item in items}

    def contributes(self, host: str, after: int = 0) -> None:
        """Wait for a seal after this position with the work of the region that this host leads."""

        def found() -> bool:
            news = self.links()[after + 1 :]
            return any(host in map(self.name_of, accepted_nodes(link)) for link in news)

        self.until(found, f"work of {host}'s region after {after}")

    def tell_times(self, heir: str, after: int, from_ms: int) -> None:
        """For docs/network.md (`pytest -s`): what the heir took to be named, and to have work sealed."""
        news = [(1e-3 * (link.entry.time_ms - from_ms), link) for link in self.links()[after:]]
        named = next(seconds for seconds, link in news if isinstance(link.entry.body, Regions))
        sealed = [(seconds, accepted_nodes(link)) for seconds, link in news if accepted_nodes(link)]
        first = next(seconds for seconds, nodes in sealed if heir in map(self.name_of, nodes))
        moments = [0.0, *(seconds for seconds, _ in sealed)]
        longest = max(later - sooner for sooner, later in itertools.pairwise(moments))
        print(f"heir named {named:.1f} s, work sealed {first:.1f} s, longest between seals {longest:.1f} s")

    def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            eventually(condition, START_S / 2, what)
        except AssertionError as error:
            logs = "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in self._folder.glob("*.log"))
            raise AssertionError(f"{error}\n{logs}") from None


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_coasts_are_two_regions_and_one_of_them_loses_its_hub(tmp_path: Path) -> None:
    membership = {**TINY["membership"], "lease_s": LEASE_S, "min_nodes": 2}
    with Lab(parse_fleet(FLEET)) as lab:
        machines = Machines(lab, tmp_path)
        machines.serve({**TINY, "strategy": STRATEGY, "membership": membership})
        for host, up in UPLINKS.items():
            machines.lend(host, up)
        coasts = {"west-1": ["west-1", "west-2"], "east-1": ["east-1", "east-2"]}
        machines.until(
            lambda: machines.regions() == coasts, "a region on each coast, led by the best uplinks"
        )
        machines.contributes("west-1")
        machines.contributes("east-1")

        off_at, off_ms = len(machines.links()), time.time_ns() // 1_000_000
        lab.change(Power(("west-1",), False))
        machines.until(lambda: machines.regions().get("west-2") == ["west-2"], "an heir in the west")
        machines.contributes("west-2", after=off_at)
        machines.contributes("east-1", after=off_at)
        assert machines.regions()["east-1"] == coasts["east-1"], "nobody else was moved"
        machines.tell_times("west-2", off_at, off_ms)

        on_at = len(machines.links())
        lab.change(Power(("west-1",), True))
        machines.until(
            lambda: machines.regions().get("west-2") == coasts["west-1"], "it is back, as a member"
        )
        machines.contributes("west-2", after=on_at)
