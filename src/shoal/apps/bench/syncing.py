"""One outer sync of a large model between four hosts in the lab, by real processes: from the last local step done to
every node on the new version; then the same right after one host was cut off.

In flow a profile and a congestion control; out flow seconds and bytes. Invariant: the same processes, lines and clock
for both figures; the coordinator lives on the first host and shares its line; every host's disk is in memory, since
four hosts here would else share one disk.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shoal.apps.bench.sync_process import Job, sync_recipe
from shoal.apps.flat import without_regions
from shoal.apps.progress import Bar
from shoal.base.errors import ShoalError
from shoal.lab.lab import Lab
from shoal.lab.library import parse_fleet
from shoal.lab.links import Between
from shoal.lab.scratch import scratch
from shoal.strategy.recipe import recipe_from

PROFILES: dict[str, dict[str, str]] = {
    "A": {"latency": "10 ms"},
    "B": {"latency": "25 ms", "loss": "0.25 %"},
}
"""One way to the core, and the loss of each of the two lines on a way: 40 ms there and back; 100 ms and 0.5 %."""
HOSTS = ("a", "b", "c", "d")
VICTIM = HOSTS[-1]
RATE = "100 Mbit/s"
PERIOD_S = 4.0
WARM_UP, SYNCS = 3, 5
START_S, LIMIT_S = 90.0, 60.0
IN_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of its own is made in it)
STAGES = ("claimed", "pushed", "sealed", "fetched", "folded", "adopted")
Say = Callable[[str], None]


@dataclass(slots=True)
class _Events:
    """What the nodes said, by what, round and host."""

    files: dict[str, Path]

    def read(self) -> dict[tuple[str, int], dict[str, float]]:
        found: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        for host, path in self.files.items():
            for line in path.read_text().splitlines():
                told = json.loads(line)
                found[told["what"], told["round"]].setdefault(host, told["at"])
        return found


def measure(profile: str, congestion: str | None, preset: str, params: int, say: Say) -> dict[str, Any]:
    """Run it. Raises SH-LAB and SH-RECIPE errors, and SH-RUN-01 if a sync does not come about."""
    fleet = parse_fleet(_fleet_text(profile))
    # A mistake is told here, not by a process that ends.
    without_regions(recipe_from(sync_recipe(len(HOSTS), preset)), preset)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch("sync-", IN_MEMORY if IN_MEMORY.is_dir() else None))
        lab = stack.enter_context(Lab(fleet, congestion=congestion))
        say("measuring the lab's lines")
        lab.measure()
        events = _start(lab, folder, preset, params, stack, say)
        about = {"profile": profile, "preset": preset, "params": params, "hosts": len(HOSTS)}
        return about | _play(lab, events, say)


def _fleet_text(profile: str) -> str:
    line = {"up": RATE, "down": RATE, **PROFILES[profile]}
    return json.dumps(
        {"name": f"sync-{profile}", "hosts": [{"name": name, **line} for name in HOSTS], "seed": 1}
    )


def _start(lab: Lab, folder: Path, preset: str, params: int, stack: ExitStack, say: Say) -> _Events:
    """The coordinator on the first host, a node on each."""
    say("starting the coordinator and four nodes")
    recipe = sync_recipe(len(HOSTS), preset)
    files = {name: folder / f"{name}.out" for name in ("coordinator", *HOSTS)}

    def start(host: str, name: str, **more: Any) -> None:
        (folder / name).mkdir()
        job = Job(
            home=str(folder / name),
            address=lab.address(host),
            params=params,
            period_s=PERIOD_S,
            name=name,
            **more,
        )
        out = stack.enter_context(files[name].open("wb"))
        errors = stack.enter_context((folder / f"{name}.err").open("wb"))
        words = [sys.executable, "-m", "shoal.apps.bench.sync_process", msgspec.json.encode(job).decode()]
        quiet = {"OMP_NUM_THREADS": "1"}
        lab.start(host, words, environment=quiet, output=out.fileno(), errors=errors.fileno())

    start(HOSTS[0], "coordinator", role="coordinator", recipe=recipe)
    told = _until(lambda: files["coordinator"].read_text().strip(), START_S, "the coordinator to start")
    for host in HOSTS:
        start(host, host, role="node", invitation=json.loads(told))
    return _Events({host: files[host] for host in HOSTS})


def _play(lab: Lab, events: _Events, say: Say) -> dict[str, Any]:
    first = _wait_for_syncs(events, 0, WARM_UP, HOSTS, START_S)
    say(f"warm after round {first}; timing {SYNCS} syncs")
    lab.begin()
    sent = _sent(lab)
    last = _wait_for_syncs(events, first + 1, SYNCS, HOSTS, SYNCS * LIMIT_S)
    wire_bytes = (_sent(lab) - sent) / SYNCS
    rounds = range(first + 1, last + 1)
    found = events.read()
    times = [_sync_s(found, number, HOSTS) for number in rounds]
    report = lab.report()
    say("cutting one host off")
    for other in HOSTS[:-1]:
        lab.change(Between(frozenset({(other, VICTIM), (VICTIM, other)}), True))
    cut_at, left = time.monotonic(), HOSTS[:-1]
    after = _until(lambda: _sync_after(events.read(), cut_at, left), LIMIT_S, "a sync after the cut")
    return {
        "seconds": round(statistics.median(times), 3),
        "seconds_each": [round(seconds, 3) for seconds in times],
        "seconds_after_cut": round(after, 3),
        "wire_bytes": round(wire_bytes),
        "stages": _stages(found, rounds),
        "congestion": report.congestion,
        "congestion_available": Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .read_text()
        .split(),
        "lab_valid": report.valid,
        "lab_reasons": list(report.reasons),
        "cpu_busy": round(report.cpu.busy_mean, 3),
    }


def _wait_for_syncs(events: _Events, after: int, count: int, hosts: Sequence[str], limit_s: float) -> int:
    """Wait until so many rounds from `after` on are everywhere; the last of them."""

    def done(bar: Bar) -> int | None:
        found = events.read()
        numbers = sorted(n for what, n in found if what == "adopted" and len(found[what, n]) == len(hosts))
        new = [number for number in numbers if number >= after]
        bar.at(len(new), count, "syncs")
        return new[count - 1] if len(new) >= count else None

    with Bar() as bar:
        return int(_until(lambda: done(bar), limit_s, f"{count} syncs"))


def _sync_s(found: dict[tuple[str, int], dict[str, float]], number: int, hosts: Sequence[str]) -> float:
    """From the last host's last local step to the last host on the new version."""
    ends, begins = found["adopted", number], found["stepped", number]
    return max(ends[host] for host in hosts) - max(begins[host] for host in hosts)


def _sync_after(
    found: dict[tuple[str, int], dict[str, float]], after: float, hosts: Sequence[str]
) -> float | None:
    """The first sync of these hosts whose last local step came after a moment."""
    for what, number in sorted(found):
        begins, ends = found[what, number], found.get(("adopted", number), {})
        whole = what == "stepped" and all(host in begins and host in ends for host in hosts)
        if whole and max(begins[host] for host in hosts) > after:
            return _sync_s(found, number, hosts)
    return None


def _stages(found: dict[tuple[str, int], dict[str, float]], rounds: Sequence[int]) -> dict[str, float]:
    """When each stage was over everywhere, in seconds after the last local step; the median of the rounds."""
    told: dict[str, list[float]] = defaultdict(list)
    for number in rounds:
        began = max(found["stepped", number].values())
        for what in STAGES:
            if at := found.get((what, number)):
                told[what].append(max(at.values()) - began)
    return {what: round(statistics.median(values), 3) for what, values in told.items()}


def _sent(lab: Lab) -> int:
    return sum(host.sent_bytes for host in lab.report().hosts)


def _until(probe: Callable[[], Any], limit_s: float, what: str) -> Any:
    """Ask until there is an answer. Raises SH-RUN-01 if there is none in time."""
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        if (answer := probe()) not in (None, ""):
            return answer
        time.sleep(0.1)
    raise ShoalError(
        "SH-RUN-01", f"waited {limit_s:g} s for {what}", "try again on a machine that is not busy"
    )
