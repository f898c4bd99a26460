"""What taking part costs: nodes in a run against as many trainers that know nothing of one another.

Coordinator and nodes are real processes over the real transport; lonely trainers run before and after them, so
that a machine whose speed drifts does not favour either.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.apps.demo_processes import Family
from shoal.apps.home import find_home
from shoal.apps.progress import lasting
from shoal.base.errors import ShoalError
from shoal.runlog.chain import read_link
from shoal.runlog.entries import Seal
from shoal.runlog.view import RunView
from shoal.worlds.real.sqlstore import SqlLogStore

RECIPE = "stdlib-gpt"
SETTINGS = ["budget.rounds=1000000", "evaluation.every=1000000"]
START_S, LOOK_S = 120.0, 2.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measure(nodes: int, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Tokens a second of each, and their ratio. The shipped recipe, without validation, which lonely trainers do
    not do either."""
    count = nodes or os.cpu_count() or 1
    lonely = []
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        lonely.append(_lonely(count, seconds / 2, say))
        connected, rounds = _connected(count, seconds, Path(folder), say)
        lonely.append(_lonely(count, seconds / 2, say))
    unconnected = sum(lonely) / len(lonely)
    return {
        "nodes": count,
        "rounds": rounds,
        "connected_tokens_s": round(connected, 1),
        "unconnected_tokens_s": round(unconnected, 1),
        "unconnected_runs": [round(value, 1) for value in lonely],
        "ratio": round(connected / unconnected, 4),
    }


def _lonely(count: int, seconds: float, say: Callable[[str], None]) -> float:
    """Tokens a second of all together, started at one word."""
    say(f"{count} unconnected trainers for {seconds:g} s")
    command = [sys.executable, "-m", "shoal.apps.bench.lonely", RECIPE, str(seconds)]
    children = [
        subprocess.Popen(
            [*command, str(number), *SETTINGS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )
        for number in range(count)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        with lasting(seconds):
            return sum(float(child.stdout.readline()) for child in children if child.stdout)
    finally:
        for child in children:
            child.kill()
            child.wait()


def _connected(count: int, seconds: float, folder: Path, say: Callable[[str], None]) -> tuple[float, int]:
    """Tokens a second between the first and the last seal of a run, and its rounds."""
    say(f"{count} nodes in a run for {seconds:g} s")
    home = find_home(folder / "coordinator")
    with Family(folder / "logs") as family:
        arguments = ["serve", "--home", str(folder / "coordinator"), "--recipe", RECIPE]
        for option in ("--port", "--control-port", "--blob-port"):
            arguments += [option, "0"]
        for setting in [*SETTINGS, f"membership.min_nodes={count}"]:
            arguments += ["--set", setting]
        coordinator = family.start("coordinator", arguments, {})
        said = family.await_line(coordinator, lambda line: line == "ready", START_S)
        ticket = next(line.split()[-1] for line in said if line.strip().startswith("shoal join "))
        for number in range(count):
            options = ["--home", str(folder / f"node-{number}"), "--device", "cpu", "--threads", "1", "--yes"]
            inbound = ["--port", "0", "--bind", "127.0.0.1"]
            family.start(f"node-{number}", ["join", ticket, *options, *inbound], ONE_THREAD)
        seals = _wait(home.store_url, seconds, say)
    began, ended = seals[0][0], seals[-1][0]
    if ended <= began:
        raise ShoalError("SH-RUN-01", "the run sealed too few rounds to measure", "give it more --seconds")
    return sum(tokens for _, tokens in seals[1:]) / ((ended - began) / 1000), len(seals)


def _wait(store: str, seconds: float, say: Callable[[str], None]) -> list[tuple[int, int]]:
    """Let the run go on for so long after its first seal; (time, tokens) of each."""
    deadline = time.monotonic() + START_S
    while not (seals := _seals(store)):
        if time.monotonic() > deadline:
            raise ShoalError("SH-RUN-01", "no round was sealed", "see whether `shoal demo` works here")
        time.sleep(LOOK_S)
    ends = time.monotonic() + seconds
    with lasting(seconds):
        while time.monotonic() < ends:
            time.sleep(LOOK_S)
            seals = _seals(store)
    say(f"{len(seals)} rounds sealed")
    return seals


def _seals(store: str) -> list[tuple[int, int]]:
    opened = SqlLogStore(store, create=False)
    try:
        run = opened.runs()[0]
        view, seals = RunView(), []
        for encoded in opened.read(run):
            link = read_link(encoded)
            view.apply(link)
            if isinstance(link.entry.body, Seal):
                tokens = sum(update.claim.tokens for update in view.path[-1].updates)
                seals.append((link.entry.time_ms, tokens))
        return seals
    finally:
        opened.close()
