"""A real coordinator in a process of its own, with runs that a crowd joins, for benchmarks of what people look at.

In flow how many nodes and how often they beat; out flow its address, its token and, at the end, the crowd's counts.
Invariant: both processes are gone when the `with` block ends, however it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from shoal.apps.api.client import ApiClient
from shoal.base.errors import ShoalError

_RECIPE: dict[str, Any] = {
    "model": {"kind": "mlp", "width": 16, "layers": 1},
    "data": {"source": "digits"},
    "inner": {"kind": "adamw", "batch_size": 16},
    "budget": {"rounds": 10},
    "membership": {"min_nodes": 100_000, "heartbeat_s": 5.0, "lease_s": 60.0, "reconnect_s": 30.0},
}
"""A run that waits for more nodes than come: everything here is about looking on."""


@dataclass(slots=True)
class Standing:
    address: str
    token: str
    runs: list[str]
    pid: int
    _crowd: subprocess.Popen[str]

    def dismiss(self) -> dict[str, int]:
        """End the crowd; what it sent, was answered and lost."""
        assert self._crowd.stdin is not None and self._crowd.stdout is not None
        self._crowd.stdin.close()
        counts: dict[str, int] = json.loads(self._crowd.stdout.readline())
        return counts


@contextmanager
def standing(
    nodes: int, every_s: float, say: Callable[[str], None], *, runs: int = 1, pinned: bool = False
) -> Iterator[Standing]:
    """A coordinator whose runs have `nodes` nodes together, each beating every so often."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        home = Path(folder)
        cores = sorted(os.sched_getaffinity(0)) if pinned and hasattr(os, "sched_getaffinity") else []
        with served(home, nodes, core=cores[0] if len(cores) > 1 else None) as coordinator:
            submit = coordinator.api.submit
            made = [submit(json.dumps({**_RECIPE, "name": f"crowd-{number}"})) for number in range(runs)]
            say(f"{nodes} nodes join {runs} run{'s' if runs > 1 else ''}")
            crowd = start_process(["-m", "shoal.apps.bench.crowd"], home / "crowd.log", stdin=subprocess.PIPE)
            try:
                wish = {
                    "tickets": [item.ticket for item in made],
                    "nodes": nodes,
                    "every_s": every_s,
                    "folder": str(home / "crowd"),
                    "core": cores[-1] if len(cores) > 1 else None,
                }
                (home / "crowd").mkdir()
                assert crowd.stdin is not None
                crowd.stdin.write(json.dumps(wish) + "\n")
                crowd.stdin.flush()
                until_said(crowd, "joined", home / "crowd.log")
                yield Standing(
                    address=coordinator.address,
                    token=coordinator.token,
                    runs=[item.run for item in made],
                    pid=coordinator.pid,
                    _crowd=crowd,
                )
            finally:
                end_process(crowd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A coordinator in a process of its own."""

    address: str
    token: str
    pid: int
    api: ApiClient


@contextmanager
def served(home: Path, nodes: int = 1, *, core: int | None = None) -> Iterator[Served]:
    """A coordinator with room for so many nodes, on one core if one is named."""
    log = home / "coordinator.log"
    process = start_process(["-m", "shoal.apps.cli", *_serve(home, nodes)], log)
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        until_said(process, "ready", log)
        address = (home / "coordinator" / "api-address").read_text().strip()
        token = (home / "coordinator" / "admin-token").read_text().strip()
        with ApiClient(address, token) as api:
            yield Served(address=address, token=token, pid=process.pid, api=api)
    finally:
        end_process(process)


def _serve(home: Path, nodes: int) -> list[str]:
    ports = ["--port", "0", "--control-port", "0", "--blob-port", "0"]
    room = str(nodes + 64)
    return ["serve", "--home", str(home), *ports, "--channels", room, "--channels-per-address", room]


def start_process(arguments: list[str], log: Path, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with open(log, "wb") as errors:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )


def until_said(process: subprocess.Popen[str], word: str, log: Path) -> None:
    assert process.stdout is not None
    lines: IO[str] = process.stdout
    for line in lines:
        if line.strip() == word:
            return
    tail = log.read_text(errors="replace")[-600:]
    raise ShoalError(
        "SH-BENCH-01", f"a process of the benchmark ended before it said {word!r}: {tail}", "try again"
    )


def end_process(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None and not stream.closed:
            stream.close()
