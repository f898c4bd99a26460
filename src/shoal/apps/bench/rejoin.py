"""How soon a node that was killed contributes again: kill -9, start it anew, wait for its work in a seal.

In flow how many nodes and kills; out flow seconds from the kill to the first seal that accepts work planned after it.
Invariant: coordinator and nodes are real processes with default membership settings; work that was planned before the
kill does not count, though it may be sealed after it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shoal.apps.demo_processes import Child, Family
from shoal.apps.home import find_home
from shoal.apps.progress import tracked
from shoal.base.ids import NodeId
from shoal.runlog.chain import Link, read_link
from shoal.runlog.entries import Claim, Plan, Seal
from shoal.wire.identity import Identity
from shoal.wire.signed import parse
from shoal.worlds.real.sqlstore import SqlLogStore

RECIPE = "digits"
SETTINGS = ("budget.rounds=1000000", "strategy.schedule.steps=20", "evaluation.every=1000000")
ALLOWED_S = 10.0
START_S, LOOK_S = 180.0, 0.1
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measure(nodes: int, kills: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Kill one of the nodes again and again, each time once all contribute."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as made, Family(Path(made) / "logs") as family:
        fleet = _Fleet(family, Path(made), nodes)
        try:
            say(f"{nodes} nodes start")
            fleet.start()
            results = []
            for number in tracked(range(kills), "kills"):
                results.append(fleet.kill_and_wait())
                say(
                    f"kill {number + 1}: planned again after {results[-1].planned_s:.1f} s, {results[-1].told()}"
                )
        finally:
            fleet.close()
    seconds = [result.contributed_s for result in results]
    return {
        "nodes": nodes,
        "kills": kills,
        "seconds_to_plan": [round(result.planned_s, 2) for result in results],
        "seconds_to_contribute": [round(value, 2) for value in seconds],
        "median_s": round(statistics.median(seconds), 2),
        "worst_s": round(max(seconds), 2),
        "rounds_meanwhile": sum(result.rounds for result in results),
        "allowed_s": ALLOWED_S,
        "ok": max(seconds) <= ALLOWED_S,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoined:
    planned_s: float
    """Until it was given work again."""
    contributed_s: float
    rounds: int
    """Sealed without it in between."""

    def told(self) -> str:
        return f"contributed after {self.contributed_s:.1f} s, {self.rounds} rounds sealed without it"


class _Fleet:
    def __init__(self, family: Family, folder: Path, nodes: int) -> None:
        self._family, self._folder = family, folder
        self._names = [f"node-{number}" for number in range(nodes)]
        self._children: dict[str, Child] = {}
        self._ticket = ""
        self._store: SqlLogStore | None = None

    def start(self) -> None:
        """Coordinator and nodes, until every node has contributed twice."""
        home = self._folder / "coordinator"
        arguments = ["serve", "--home", str(home), "--recipe", RECIPE]
        for option in ("--port", "--control-port", "--blob-port"):
            arguments += [option, "0"]
        for setting in (*SETTINGS, f"membership.min_nodes={len(self._names)}"):
            arguments += ["--set", setting]
        coordinator = self._family.start("coordinator", arguments, ONE_THREAD)
        said = self._family.await_line(coordinator, lambda line: line == "ready", START_S)
        self._ticket = next(line.split()[-1] for line in said if line.strip().startswith("shoal join "))
        self._store = SqlLogStore(find_home(home).store_url, create=False)
        for name in self._names:
            self._join(name)
        for name in self._names:
            self._until(partial(self._has_worked, self._node(name)), name)

    def _has_worked(self, node: NodeId) -> bool:
        return len(_works(self._links(), node, 0)) >= 2

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def kill_and_wait(self) -> Rejoined:
        name = self._names[0]
        node, before = self._node(name), len(self._links())
        began_ms = time.time_ns() // 1_000_000
        self._family.kill(self._children[name])
        self._join(name)
        self._until(lambda: bool(_works(self._links(), node, before)), name)
        links = self._links()
        work = _works(links, node, before)[0]
        planned = next(link for link in links[before:] if _plans_for(link, node))
        seals = [link for link in links[before : work.entry.position] if isinstance(link.entry.body, Seal)]
        return Rejoined(
            planned_s=(planned.entry.time_ms - began_ms) / 1000,
            contributed_s=(work.entry.time_ms - began_ms) / 1000,
            rounds=len(seals),
        )

    def _join(self, name: str) -> None:
        options = ["--home", str(self._folder / name), "--device", "cpu", "--threads", "1", "--yes"]
        inbound = ["--port", "0", "--bind", "127.0.0.1"]
        arguments = ["join", self._ticket, "--name", name, *options, *inbound]
        self._children[name] = self._family.start(name, arguments, ONE_THREAD)

    def _node(self, name: str) -> NodeId:
        key = find_home(self._folder / name).node_key
        self._until(lambda: key.exists() and len(key.read_text()) > 63, name)
        return Identity(bytes.fromhex(key.read_text().strip())).node

    def _links(self) -> list[Link]:
        assert self._store is not None
        return [read_link(entry) for entry in self._store.read(self._store.runs()[0])]

    def _until(self, done: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + START_S
        while not done():
            child = self._children[name]
            if time.monotonic() > deadline or not child.alive:
                raise self._family.failed(child)
            time.sleep(LOOK_S)


def _plans_for(link: Link, node: NodeId) -> bool:
    body = link.entry.body
    return isinstance(body, Plan) and any(item.node == node for item in body.members)


def _works(links: list[Link], node: NodeId, planned_after: int) -> list[Link]:
    """The seals that accept a node's work that was planned at or after this position."""
    found = []
    for link in links:
        body = link.entry.body
        if isinstance(body, Seal):
            claims = [parse(item.claim.payload, Claim) for item in body.accepted]
            if any(c is not None and c.node == node and c.plan >= planned_after for c in claims):
                found.append(link)
    return found
