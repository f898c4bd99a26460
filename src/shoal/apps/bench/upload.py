"""`shoal bench upload`: from a small dataset that somebody sends to the first step that trains on it.

In flow how much text and how often; out flow seconds, in all and by part. Invariant: a real coordinator and a real node
over loopback; the clock runs from the first byte of the upload, through founding the run, to the end of a node's first
step. A node is counted twice: started when its ticket is there, and waiting with everything loaded.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.apps.api.client import ApiClient
from shoal.apps.bench.standing import end_process, served, start_process, until_said
from shoal.apps.progress import tracked
from shoal.apps.recipes import shipped

LINE = "the quick brown fox number {} jumps over the lazy dog and writes {} lines of Python\n"


def measure(kilobytes: int, times: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Medians over so many new runs, each with a dataset and a node of its own."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder, served(Path(folder)) as coordinator:
        api = coordinator.api
        say(
            f"{times} runs of {kilobytes} kB, their nodes started with the ticket, then as many waiting for it"
        )
        found = [
            _one(api, Path(folder), kilobytes, number, warm=number >= times)
            for number in tracked(range(2 * times), "runs")
        ]
        cold, warm = found[:times], found[times:]
    return {
        "seconds_to_first_step": _median(cold, "all"),
        "slowest_seconds_to_first_step": max(one["all"] for one in cold),
        "upload_s": _median(cold, "upload"),
        "found_s": _median(cold, "found"),
        "start_node_s": _median(cold, "start"),
        "join_and_step_s": _median(cold, "step"),
        "seconds_with_a_node_ready": _median(warm, "all"),
        "kilobytes": kilobytes,
        "times": times,
        "load_average": os.getloadavg()[0],
    }


def _median(found: list[dict[str, float]], name: str) -> float:
    return statistics.median(one[name] for one in found)


def _one(api: ApiClient, folder: Path, kilobytes: int, number: int, *, warm: bool) -> dict[str, float]:
    content = "".join(LINE.format(number, line) for line in range(kilobytes * 1000 // len(LINE))).encode()
    with _node(folder, f"node-{number}") as waiting:
        if warm:
            node = waiting()
        began = time.perf_counter()
        sent = api.upload("poem.txt", content)
        uploaded = time.perf_counter()
        made = api.submit(json.dumps(_recipe(number, sent.data)))
        founded = time.perf_counter()
        if not warm:
            node = waiting()
        started = time.perf_counter()
        _take_part(node, made.ticket, folder / f"node-{number}.log")
        ended = time.perf_counter()
    api.stop(made.run, "measured")
    return {
        "all": ended - began,
        "upload": uploaded - began,
        "found": founded - uploaded,
        "start": started - founded,
        "step": ended - started,
    }


def _recipe(number: int, data: dict[str, Any]) -> dict[str, Any]:
    """What the dashboard's form sends when somebody only chooses a file."""
    import yaml

    recipe: dict[str, Any] = yaml.safe_load(shipped()["stdlib-gpt"].read_text("utf-8"))
    kept = {name: recipe["data"][name] for name in ("tokenizer", "context")}
    return {**recipe, "name": f"upload-{number}", "data": {**kept, **data}}


@contextmanager
def _node(folder: Path, name: str) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """A node's process, started when it is asked for and loaded when it is given."""
    found: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        log = folder / f"{name}.log"
        process = start_process(
            ["-m", "shoal.apps.bench.first_step", str(folder / name)], log, stdin=subprocess.PIPE
        )
        found.append(process)
        until_said(process, "ready", log)
        return process

    try:
        yield start
    finally:
        for process in found:
            end_process(process)


def _take_part(node: subprocess.Popen[str], ticket: str, log: Path) -> None:
    assert node.stdin is not None
    node.stdin.write(ticket + "\n")
    node.stdin.flush()
    until_said(node, "step", log)
