"""How long a run stands still when its coordinator is killed: a leader, a stand-by and nodes as real processes.

In flows how often; out flow seconds from the kill to the next seal. Invariant: the store's own entries tell the time,
in the one clock of this machine; everything has the settings it has by default.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from shoal.apps.demo_processes import Child, Family
from shoal.apps.home import Home, make_folder
from shoal.apps.ports import open_port
from shoal.apps.progress import tracked
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.coordinator.electing import LAPSE_S
from shoal.coordinator.leading import LEASE_S
from shoal.runlog.chain import read_link
from shoal.runlog.entries import Seal
from shoal.worlds.real.keys import load_or_create_identity
from shoal.worlds.real.sqlstore import SqlLogStore

T = TypeVar("T")
START_S, SEAL_S = 120.0, 60.0
LOOK_S = 0.05
RECIPE: dict[str, Any] = {
    "name": "failover",
    "model": {"kind": "mlp", "width": 16, "layers": 1},
    "data": {"source": "digits", "validation_fraction": 0.2},
    "inner": {"kind": "adamw", "lr": 0.003, "batch_size": 16},
    "strategy": {"preset": "local-sgd", "schedule": {"steps": 2}},
    "membership": {"min_nodes": 2},
    "budget": {"rounds": 1_000_000},
    "evaluation": {"every": 1_000_000},
}
"""A round of a moment: what is left of one when the leader dies must not be what is measured."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measure(
    times: int, nodes: int, store: str | None, say: Callable[[str], None], *, own: bool = False
) -> dict[str, Any]:
    """Kill whoever leads, again and again; the killed one comes back to stand by. They share a store, or have their
    `own` each."""
    with (
        tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder,
        Family(Path(folder) / "logs") as family,
    ):
        url = "" if own else store or f"sqlite:///{folder}/store.sqlite"
        pair = _Pair(Path(folder), family, url)
        pair.begin(nodes)
        how = f"share a store, with a lease of {LEASE_S:g} s" if url else "have a store each"
        say(f"{nodes} nodes train; two coordinators {how}")
        taken = []
        for number in tracked(range(times), "kills"):
            taken.append(pair.kill_leader())
            say(f"kill {number + 1} of {times}: the next seal came after {taken[-1]:.2f} s")
    return {
        "seconds_to_next_seal": round(max(taken), 3),
        "median_seconds": round(statistics.median(taken), 3),
        "kills": [round(seconds, 3) for seconds in taken],
        "lease_seconds": LAPSE_S if own else LEASE_S,
        "stores": "own" if own else "shared",
        "nodes": nodes,
    }


class _Pair:
    """Two coordinators, on one store or (no `store`) with one each, and the nodes of one run."""

    def __init__(self, folder: Path, family: Family, store: str) -> None:
        self._folder, self._family, self._url = folder, family, store
        self._homes = [Home(folder / "first"), Home(folder / "second")]
        self._ports = [[_free_port(), _free_port()] for _ in self._homes]
        self._children: list[Child] = []
        self._run = RunId("")

    def begin(self, nodes: int) -> None:
        """Start both and the nodes, and wait for a few seals."""
        make_folder(self._homes[0].coordinator)
        make_folder(self._homes[1].coordinator)
        load_or_create_identity(self._homes[0].coordinator_key)
        shutil.copy(self._homes[0].coordinator_key, self._homes[1].coordinator_key)
        recipe = self._folder / "recipe.yaml"
        recipe.write_text(json.dumps(self._recipe()), "utf-8")
        first = self._serve(0, ["--recipe", str(recipe)])
        if not self._url:  # Their run begins with a majority of them.
            self._children = [first, self._serve(1, ["--standby-of", self._addresses()[0]])]
        said = self._family.await_line(first, lambda line: line == "ready", START_S)
        ticket = next(line.split()[2] for line in said if line.startswith("  shoal join "))
        self._run = RunId(next(line.split()[1] for line in said if line.startswith("  run ")))
        if self._url:
            self._children = [first, self._serve(1, [])]
        self._family.await_line(self._children[1], lambda line: "standing by" in line, START_S)
        for number in range(nodes):
            home = ["--home", str(self._folder / f"node-{number}"), "--yes", "--port", "0"]
            self._family.start(f"node-{number}", ["join", ticket, *home], ONE_THREAD)
        self._seal_after(0, START_S)

    def _addresses(self) -> list[str]:
        return [f"127.0.0.1:{control}" for control, _ in self._ports]

    def _recipe(self) -> dict[str, Any]:
        if self._url:
            return RECIPE
        return {**RECIPE, "membership": {**RECIPE["membership"], "coordinators": self._addresses()}}

    def _serve(self, number: int, more: list[str]) -> Child:
        control, blobs = self._ports[number]
        shared = ["--store", self._url, "--shared"] if self._url else []
        place = ["--home", str(self._homes[number].root), *shared, "--port", "0"]
        ports = ["--control-port", str(control), "--blob-port", str(blobs)]
        return self._family.start(f"coordinator-{number}", ["serve", *place, *ports, *more], ONE_THREAD)

    def kill_leader(self) -> float:
        """Seconds from SIGKILL to the next seal in the store; the victim stands by again afterwards."""
        self._seal_after(self._length(), SEAL_S)
        victim = self._children[0]
        killed_ms = int(time.time() * 1000)
        self._family.kill(victim)
        length = self._length()
        self._children.pop(0)
        _, sealed_ms = self._seal_after(length, SEAL_S, killed_ms)
        again = self._serve(int(victim.name[-1]), [])
        self._family.await_line(again, lambda line: "standing by" in line, START_S)
        self._children.append(again)
        return max(0.0, (sealed_ms - killed_ms) / 1000)

    def _length(self) -> int:
        return self._read(lambda store: store.length(self._run))

    def _seal_after(self, length: int, within_s: float, since_ms: int = 0) -> tuple[int, int]:
        """The first seal at this position or later, made since then: where it is, and when it was made."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            entries = self._read(lambda store: list(store.read(self._run, length)))
            for entry in (read_link(encoded).entry for encoded in entries):
                if isinstance(entry.body, Seal) and entry.time_ms >= since_ms:
                    return entry.position, entry.time_ms
            time.sleep(LOOK_S)
        raise ShoalError(
            "SH-RUN-01", f"no round was sealed within {within_s:g} s", f"read the logs in {self._folder}"
        )

    def _read(self, look: Callable[[SqlLogStore], T]) -> T:
        """Asked of the store, or of that of the one that leads, which is the first."""
        leader = int(self._children[0].name[-1]) if self._children else 0
        store = SqlLogStore(self._url or self._homes[leader].store_url, create=False)
        try:
            return look(store)
        finally:
            store.close()


def _free_port() -> int:
    with open_port("127.0.0.1", 0) as sock:
        port: int = sock.getsockname()[1]
        return port
