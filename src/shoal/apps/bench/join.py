"""How long a joiner takes for a state, against what its line could bring in that time.

In flow a size, seeders and rates; out flow seconds, and their ratio to size over bandwidth. Invariant: every end is a
process of its own, in a network namespace behind an emulated line, or, where the machine does not let labs be made, on
loopback with rate-limited sockets; which of the two is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shoal.apps.progress import growing
from shoal.base.errors import ShoalError
from shoal.base.layout import make_layout
from shoal.lab.lab import Lab
from shoal.lab.library import parse_fleet
from shoal.lab.scratch import scratch
from shoal.replica.blobs import BlobStore
from shoal.replica.state import encode_state, initial_state, state_hash
from shoal.worlds.real.disk import FileDisk

ALLOWED = 1.15
LATENCY_MS = 10
GIVE_UP_S = 900.0
MODULE = "shoal.apps.bench.join_peers"
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    megabytes: int = 100
    seeders: int = 4
    up_mbit: float = 50.0
    down_mbit: float = 100.0
    lab: bool = True


def measure(question: Question, say: Callable[[str], None]) -> dict[str, Any]:
    """Join once. Raises SH-RUN-01 if the state did not arrive whole."""
    with scratch("join-") as folder:
        wish = _make_state(folder / "seeder", question.megabytes * 1_000_000)
        say(f"a state of {wish['size_bytes'] / 1e6:.0f} MB, {question.seeders} seeders")
        how, found = _joined(question, folder, wish, say)
    if not found["whole"]:
        raise ShoalError(
            "SH-RUN-01", "the state did not arrive whole", "see whether `shoal bench blob` works"
        )
    rate = min(question.down_mbit, question.seeders * question.up_mbit) * 1e6 / 8
    ideal_s = wish["size_bytes"] / rate
    seconds = found["transfer_s"] + found["verify_s"]
    return {
        "size_bytes": wish["size_bytes"],
        "seeders": question.seeders,
        "up_mbit": question.up_mbit,
        "down_mbit": question.down_mbit,
        "links": how,
        "transfer_s": round(found["transfer_s"], 3),
        "verify_s": round(found["verify_s"], 3),
        "seconds": round(seconds, 3),
        "ideal_s": round(ideal_s, 3),
        "ratio": round(seconds / ideal_s, 4),
        "allowed": ALLOWED,
        "ok": seconds <= ALLOWED * ideal_s,
    }


def _make_state(folder: Path, size_bytes: int) -> dict[str, Any]:
    """A state of noise, as every seeder holds it."""
    numel = max(1, size_bytes // 4)
    values = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    state = initial_state(make_layout([("all", (numel,))]), values, ())
    data = encode_state(state)
    blob = BlobStore(FileDisk(folder), lambda point: None).put(data)
    return {"blob": blob, "size_bytes": len(data), "numel": numel, "state": state_hash(state)}


def _joined(
    question: Question, folder: Path, wish: dict[str, Any], say: Callable[[str], None]
) -> tuple[str, dict[str, Any]]:
    if question.lab:
        try:
            return "emulated", _in_lab(question, folder, wish, say)
        except ShoalError as error:
            if error.code not in ("SH-LAB-03", "SH-LAB-04"):
                raise
            say(f"no lab here ({error.cause}): rate-limited sockets instead")
    return "rate-limited sockets", _on_loopback(question, folder, wish)


# --- emulated lines --------------------------------------------------------------------------------------


def _in_lab(
    question: Question, folder: Path, wish: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    line = f"latency: {LATENCY_MS} ms"
    hosts = [f"{{name: joiner, up: 50 Mbit/s, down: {question.down_mbit:g} Mbit/s, {line}}}"]
    for number in range(question.seeders):
        hosts.append(f"{{name: seeder-{number}, up: {question.up_mbit:g} Mbit/s, down: 50 Mbit/s, {line}}}")
    with Lab(parse_fleet(f"hosts: [{', '.join(hosts)}]")) as lab:
        lab.measure()
        seeders = []
        for number in range(question.seeders):
            name = f"seeder-{number}"
            seeders.append(_seeder_in(lab, name, folder / "seeder"))
        lab.begin()
        say("joining over emulated lines")
        order = {**wish, "seeders": seeders, "down_bytes_s": 0}
        command = [sys.executable, "-m", MODULE, "join", str(folder / "joiner"), json.dumps(order)]
        with growing(folder / "joiner", wish["size_bytes"]):
            done = lab.run("joiner", command, timeout_s=GIVE_UP_S)
        report = lab.report()
    if done.code != 0:
        raise ShoalError("SH-RUN-01", f"the joiner failed: {done.errors[-500:]}", "try --no-lab")
    for reason in report.reasons:
        say(f"the lab doubts itself: {reason}")
    found: dict[str, Any] = json.loads(done.output.strip().splitlines()[-1])
    return found


def _seeder_in(lab: Lab, name: str, folder: Path) -> tuple[str, str]:
    reading, writing = os.pipe()
    address = lab.address(name)
    lab.start(
        name, [sys.executable, "-m", MODULE, "seed", str(folder), address, "0"], output=writing, errors=2
    )
    os.close(writing)
    with os.fdopen(reading) as said:
        where = json.loads(said.readline())
    return where["node"], where["address"]


# --- rate-limited sockets --------------------------------------------------------------------------------


def _on_loopback(question: Question, folder: Path, wish: dict[str, Any]) -> dict[str, Any]:
    up_bytes_s = question.up_mbit * 1e6 / 8
    with contextlib.ExitStack() as children:
        seeders = [
            children.enter_context(_seeder_here(folder / "seeder", up_bytes_s))
            for _ in range(question.seeders)
        ]
        order = {**wish, "seeders": seeders, "down_bytes_s": question.down_mbit * 1e6 / 8}
        command = [sys.executable, "-m", MODULE, "join", str(folder / "joiner"), json.dumps(order)]
        environment = {**os.environ, **ENVIRONMENT}
        with growing(folder / "joiner", wish["size_bytes"]):
            done = subprocess.run(
                command, stdout=subprocess.PIPE, check=True, timeout=GIVE_UP_S, env=environment
            )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextlib.contextmanager
def _seeder_here(folder: Path, up_bytes_s: float) -> Iterator[tuple[str, str]]:
    command = [sys.executable, "-m", MODULE, "seed", str(folder), "127.0.0.1", str(up_bytes_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            where = json.loads(child.stdout.readline())
            yield where["node"], where["address"]
        finally:
            child.kill()
