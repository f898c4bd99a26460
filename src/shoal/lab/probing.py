"""Probing a lab's links through the lab itself.

In flows an idle lab; out flow measurements by pair. Invariant: probes run as any other program does, in the hosts,
and never put more on the emulator at once than it carries easily: what is measured is its exactness, not its limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.lab.accuracy import Compared, Measured, compare, expected_rate, pairs_to_probe

if TYPE_CHECKING:
    from shoal.lab.keeping import Process
    from shoal.lab.lab import Lab

SCRIPT = Path(__file__).parent / "probe.py"
FIRST_PORT = 7700
PACKETS_S = {"python": 3000}
PACKETS_S_OTHERS = 12000
WAVE_BYTES_S = {"python": 5e6}
WAVE_BYTES_S_OTHERS = 60e6
ASK_S, FLOOD_S = 1.5, 0.6
MOST_WAVES = 16
ATTEMPTS = 3
OVERLOAD = 1.3
ANSWER_S = 60.0

Way = tuple[str, str]


def measure(lab: Lab, emulator: str) -> list[Compared]:
    """What the probes find against what should be. A pair that is off is probed again: a busy moment of the machine
    is not the emulator's fault, and what it does to programs, the watch on the processors sees."""
    found: dict[Way, list[Compared]] = {way: [] for way in pairs_to_probe(lab.network)}
    ways = list(found)
    for _ in range(ATTEMPTS):
        for way, measured in zip(ways, _probe(lab, emulator, ways), strict=True):
            found[way] = compare(lab.network, [measured])
        ways = [way for way in ways if any(item.off for item in found[way])]
    return [item for items in found.values() for item in items]


def _probe(lab: Lab, emulator: str, ways: Sequence[Way]) -> list[Measured]:
    """Round trips and losses of all these pairs at once, then rates in waves."""
    if not ways:
        return []
    with _servers(lab, ways) as ports:
        found = _ask(lab, ways, ports, PACKETS_S.get(emulator, PACKETS_S_OTHERS))
        for wave in _waves(lab, ways, WAVE_BYTES_S.get(emulator, WAVE_BYTES_S_OTHERS)):
            found |= _flood(lab, wave, ports, found)
    return [found[way] for way in ways]


@contextlib.contextmanager
def _servers(lab: Lab, ways: Sequence[Way]) -> Iterator[dict[Way, int]]:
    """One server a pair, so that their counts are apart."""
    ports = {way: FIRST_PORT + number for number, way in enumerate(ways)}
    started = []
    try:
        for way in ways:
            process, output = _start(lab, way[1], ["serve", str(ports[way])])
            started.append(process)
            with os.fdopen(output) as said:
                said.readline()
        yield ports
    finally:
        lab.end_programs(started, signal.SIGKILL)
        lab.disown(started)


def _start(lab: Lab, host: str, words: list[str]) -> tuple[Process, int]:
    output, theirs = os.pipe()
    command = [sys.executable, "-I", str(SCRIPT), *words]
    try:
        return lab.start(host, command, folder=Path("/"), output=theirs), output
    finally:
        os.close(theirs)


def _gather(lab: Lab, words_by_way: dict[Way, list[str]]) -> dict[Way, dict[str, Any]]:
    """Run a probe for each pair, all at once; what each printed, {} where it printed nothing."""
    started = {way: _start(lab, way[0], words) for way, words in words_by_way.items()}
    found: dict[Way, dict[str, Any]] = {}
    ends = time.monotonic() + ANSWER_S
    for way, (process, output) in started.items():
        process.wait(max(0.0, ends - time.monotonic()))
        os.set_blocking(output, False)
        with os.fdopen(output, "rb") as reading:
            text = reading.read() or b""
        found[way] = json.loads(text) if text.strip() else {}
    processes = [process for process, _ in started.values()]
    lab.end_programs(processes, signal.SIGKILL)
    lab.disown(processes)
    return found


def _ask(lab: Lab, ways: Sequence[Way], ports: dict[Way, int], packets_s: float) -> dict[Way, Measured]:
    each = min(1000.0, packets_s / len(ways))
    interval = f"{1 / each:.6f}"
    words = {
        way: ["ask", lab.address(way[1]), str(ports[way]), str(int(ASK_S * each)), interval] for way in ways
    }
    return {way: _round_trips(way, found) for way, found in _gather(lab, words).items()}


def _round_trips(way: Way, found: dict[str, Any]) -> Measured:
    blank = Measured(sender=way[0], receiver=way[1])
    if not found.get("sent"):
        return replace(blank, loss=1.0, packets=1)
    trips = found["trips"]
    return replace(
        blank,
        rtt_s=trips[len(trips) // 2] if trips else None,
        loss=1 - found.get("echoes", 0) / found["sent"],
        packets=found["sent"],
        seconds=ASK_S,
    )


def _waves(lab: Lab, ways: Sequence[Way], most_bytes_s: float) -> Iterator[list[Way]]:
    """Limited pairs, in groups that together stay below what is easy. No host is in a group twice on one side."""
    wave: list[Way] = []
    load, waves = 0.0, 0
    for way in ways:
        rate = OVERLOAD * expected_rate(lab.network, *way)
        if not rate or waves == MOST_WAVES:
            continue
        busy = any(way[0] == a or way[1] == b for a, b in wave)
        if wave and (busy or load + rate > most_bytes_s):
            yield wave
            waves += 1
            wave, load = [], 0.0
        wave.append(way)
        load += rate
    if wave and waves < MOST_WAVES:
        yield wave


def _flood(
    lab: Lab, wave: Sequence[Way], ports: dict[Way, int], known: dict[Way, Measured]
) -> dict[Way, Measured]:
    words = {
        way: [
            "flood",
            lab.address(way[1]),
            str(ports[way]),
            f"{OVERLOAD * expected_rate(lab.network, *way):.0f}",
            str(FLOOD_S),
        ]
        for way in wave
    }
    return {
        way: replace(
            known[way], rate_bytes_s=found.get("bytes_s", 0.0), rate_seconds=found.get("seconds", 0.0)
        )
        for way, found in _gather(lab, words).items()
    }
