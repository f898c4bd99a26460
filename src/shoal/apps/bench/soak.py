"""A run that is killed at random for a long while: two coordinators with a store each, and nodes, as real processes.

In flow minutes and a seed; out flow rounds, kills, what was lost, and how memory and disk grew. Invariant: whatever was
seen to be durable is looked for at the end in what is on the disks, not in what processes say; kills are SIGKILL.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from shoal.apps.bench.slopes import HOUR_S, MEGABYTE, Sample, growth_per_hour, growth_per_round
from shoal.apps.bench.soak_checks import Disks, Noted, what_is_lost
from shoal.apps.demo_processes import Child, Family
from shoal.apps.home import Home, make_folder
from shoal.apps.ports import open_port
from shoal.apps.progress import lasting
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.worlds.real.keys import load_or_create_identity

START_S, LOOK_S, GO_ON_S = 180.0, 2.0, 120.0
SETTLE_S = 60.0
"""What a process does in so many seconds after its start is no growth yet: it imports, allocates, catches up."""
BETWEEN_KILLS_S, AWAY_S = (10.0, 40.0), (0.0, 4.0)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
COORDINATORS = ("coordinator-0", "coordinator-1")
SPARED = "spared"
"""A node that is never killed: the others live for minutes, in which what is kept of the latest rounds fills up."""
SPARED_LATER = COORDINATORS[0]
"""A coordinator that is not killed any more from half-time on, for the same reason."""
SETTLE_ROUNDS, LEAST_ROUNDS = 200, 100
"""In its first rounds a process imports, and fills what it keeps of the latest ones up to its bound: with four nodes,
memos of 2 MiB (`base.memo`) in about 150, a hundred open steps and records. From then on so many are needed to tell a
slope from noise."""
FLAT_KB_PER_ROUND = 8.0
"""What may stay in memory of a round. About 4.5 do, by design and for the sake of no caches: what every process must
know of the log (3, see docs/benchmarks.md), an answer for each signature (1.3, until 4 MiB are full), a coordinator's
record of it (0.4). At a round every two minutes the bar is 0.24 MB an hour."""


def recipe_for(addresses: list[str], nodes: int) -> dict[str, Any]:
    return {
        "name": "soak",
        "model": {"kind": "mlp", "width": 32, "layers": 1},
        "data": {"source": "digits", "validation_fraction": 0.2},
        "inner": {"kind": "adamw", "lr": 0.001, "batch_size": 16},
        "strategy": {
            "preset": "local-sgd",
            "schedule": {"steps": 10_000, "seconds": 1.0},
            "seal": {"kind": "all-or-deadline", "deadline_s": 15.0},
        },
        "budget": {"rounds": 1_000_000},
        "membership": {
            "min_nodes": nodes,
            "heartbeat_s": 1.0,
            "lease_s": 5.0,
            "reconnect_s": 2.0,
            "coordinators": addresses,
        },
        "storage": {"snapshot_every": 5, "keep_bytes": 0},
        "evaluation": {"every": 50},
    }


def measure(minutes: float, nodes: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Kill one of them every half minute or so, and start it again. Raises SH-RUN-01 if it stands still."""
    with (
        tempfile.TemporaryDirectory(prefix="shoal-soak-") as folder,
        Family(Path(folder) / "logs") as family,
    ):
        soak = _Soak(Path(folder), family, nodes, random.Random(seed))  # noqa: S311 (a seeded experiment)
        soak.begin()
        say(f"{nodes} nodes train; two coordinators, each with a store of its own")
        soak.go_on(minutes * 60.0, say)
        return soak.end(minutes)


class _Soak:
    def __init__(self, folder: Path, family: Family, nodes: int, rng: random.Random) -> None:
        self._folder, self._family, self._rng = folder, family, rng
        self._names = [*COORDINATORS, *(f"node-{number}" for number in range(nodes)), SPARED]
        self._ports = {name: (_free_port(), _free_port()) for name in COORDINATORS}
        self._children: dict[str, Child] = {}
        self._lives: dict[str, int] = defaultdict(int)
        self._ticket = ""
        self._disks = Disks(folder, COORDINATORS, tuple(self._names[2:]), RunId(""))
        self._noted = Noted()
        self._memory: dict[str, list[Sample]] = defaultdict(list)
        self._disk: dict[str, list[Sample]] = defaultdict(list)
        self._log: dict[str, list[Sample]] = defaultdict(list)
        self._began = self._half_time = time.monotonic()
        self._kills: dict[str, int] = defaultdict(int)

    # --- starting ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Both coordinators, then the nodes, until a few rounds are sealed."""
        homes = [Home(self._folder / name) for name in COORDINATORS]
        for home in homes:
            make_folder(home.coordinator)
        load_or_create_identity(homes[0].coordinator_key)
        for beside in homes[0].coordinator.glob("key*"):
            shutil.copy(beside, homes[1].coordinator / beside.name)
        addresses = [f"127.0.0.1:{self._ports[name][0]}" for name in COORDINATORS]
        recipe = self._folder / "recipe.yaml"
        recipe.write_text(json.dumps(recipe_for(addresses, len(self._names) - 2)), "utf-8")
        self._standby = ["--standby-of", addresses[0]]
        first = self._start(COORDINATORS[0], ["--recipe", str(recipe)])
        self._start(COORDINATORS[1], self._standby)
        said = self._family.await_line(first, lambda line: line == "ready", START_S)
        self._ticket = next(line.split()[2] for line in said if line.startswith("  shoal join "))
        self._disks.run = RunId(next(line.split()[1] for line in said if line.startswith("  run ")))
        for name in self._names[2:]:
            self._start(name)
        self._until_rounds(2, START_S)

    def _start(self, name: str, more: list[str] | None = None) -> Child:
        home = ["--home", str(self._folder / name)]
        if name in COORDINATORS:
            control, blobs = self._ports[name]
            ports = ["--port", "0", "--control-port", str(control), "--blob-port", str(blobs)]
            arguments = ["serve", *home, *ports, *(more or [])]
        else:
            arguments = ["join", self._ticket, *home, "--name", name, "--yes", "--port", "0"]
            arguments += ["--bind", "127.0.0.1"]
        self._lives[name] += 1
        self._children[name] = self._family.start(name, arguments, ONE_THREAD)
        return self._children[name]

    # --- killing -----------------------------------------------------------------------------------------

    def go_on(self, seconds: float, say: Callable[[str], None]) -> None:
        end = time.monotonic() + seconds
        self._half_time = end - seconds / 2
        kill_at, back = self._next_kill(), dict[str, float]()
        with lasting(seconds):
            while time.monotonic() < end:
                time.sleep(LOOK_S)
                self._sample()
                for name in [name for name, at in back.items() if time.monotonic() >= at]:
                    del back[name]
                    self._start(name)
                if time.monotonic() >= kill_at:
                    name = self._rng.choice(
                        [one for one in self._names if one not in (*back, *self._spared())]
                    )
                    self._kill(name)
                    back[name] = time.monotonic() + self._rng.uniform(*AWAY_S)
                    kill_at = self._next_kill()
                    say(f"kill {sum(self._kills.values())}: {name}, {self._disks.rounds()} rounds so far")
        for name in back:
            self._start(name)

    def _spared(self) -> tuple[str, ...]:
        return (SPARED, SPARED_LATER) if time.monotonic() >= self._half_time else (SPARED,)

    def _next_kill(self) -> float:
        return time.monotonic() + self._rng.uniform(*BETWEEN_KILLS_S)

    def _kill(self, name: str) -> None:
        self._noted.note(self._disks)  # What is durable now must be there at the end.
        self._family.kill(self._children[name])
        self._kills[name] += 1

    def _sample(self) -> None:
        now = time.monotonic() - self._began
        self._noted.note(self._disks)
        rounds = self._disks.rounds()
        for name, child in self._children.items():
            if child.alive:
                held = _own_bytes(child.process.pid)
                self._memory[name].append(Sample(self._lives[name], now, held, rounds))
            total, log = self._disks.sizes(name)
            self._disk[name].append(Sample(0, now, total - log))
            self._log[name].append(Sample(0, now, log))

    # --- the end -----------------------------------------------------------------------------------------

    def end(self, minutes: float) -> dict[str, Any]:
        self._until_rounds(2, GO_ON_S)
        self._noted.note(self._disks)
        for child in self._children.values():
            self._family.kill(child)
        lost = what_is_lost(self._disks, self._noted)
        grown = {name: self._growth(name) for name in self._names}
        rounds_per_hour = self._disks.rounds() / (time.monotonic() - self._began) * HOUR_S
        per_round = {name: grown[name]["memory_kb_per_round"] for name in (SPARED, SPARED_LATER)}
        known = [value for value in per_round.values() if value is not None]
        return {
            "minutes": minutes,
            "kills": sum(self._kills.values()),
            "rounds": self._disks.rounds(),
            "lost": len(lost),
            "lost_what": lost,
            "memory_kb_per_round": per_round,
            "memory_growth_mb_per_hour": round(max(known) * rounds_per_hour / 1000, 3) if known else None,
            "memory_bar_kb_per_round": FLAT_KB_PER_ROUND,
            "memory_flat": is_flat(per_round.values()),
            "disk_growth_mb_per_hour": max(one["disk_growth_mb_per_hour"] for one in grown.values()),
            "log_growth_mb_per_hour": max(one["log_growth_mb_per_hour"] for one in grown.values()),
            "terms": self._disks.terms(),
            "processes": grown,
        }

    def _growth(self, name: str) -> dict[str, Any]:
        memory = self._memory[name]
        per_round = growth_per_round(memory, SETTLE_ROUNDS, LEAST_ROUNDS)
        return {
            "kills": self._kills[name],
            "memory_kb_per_round": None if per_round is None else round(per_round / 1000, 2),
            "disk_growth_mb_per_hour": _mb(growth_per_hour(self._disk[name], SETTLE_S)),
            "log_growth_mb_per_hour": _mb(growth_per_hour(self._log[name], SETTLE_S)),
            "memory_mb": _mb(memory[-1].value) if memory else 0.0,
            "disk_mb": _mb(self._disk[name][-1].value) if self._disk[name] else 0.0,
        }

    def _until_rounds(self, more: int, within_s: float) -> None:
        deadline, goal = time.monotonic() + within_s, self._disks.rounds() + more
        while self._disks.rounds() < goal:
            if time.monotonic() > deadline:
                raise ShoalError(
                    "SH-RUN-01",
                    f"fewer than {more} rounds were sealed in {within_s:g} s",
                    f"read the logs in {self._folder}",
                )
            for name, child in self._children.items():
                if not child.alive:
                    raise self._family.failed(self._children[name])
            time.sleep(LOOK_S / 4)


def is_flat(kb_per_round: Iterable[float | None]) -> bool | None:
    """Whether none of them grows by more than the bar; None where none does that is known, but not all are."""
    found = [None if value is None else value <= FLAT_KB_PER_ROUND for value in kb_per_round]
    return False if False in found else None if None in found else True


def _mb(value: float) -> float:
    return round(value / MEGABYTE, 3)


def _own_bytes(pid: int) -> float:
    """What a process has written to memory itself. Pages of files are not told: the system takes them back at will."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
    except (OSError, StopIteration):  # Not Linux.
        return float(psutil.Process(pid).memory_info().rss)


def _free_port() -> int:
    with open_port("127.0.0.1", 0) as sock:
        port: int = sock.getsockname()[1]
        return port
