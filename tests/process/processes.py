"""`shoal` as operating-system processes that a test starts, signals and never leaves behind.

In flow command lines; out flow exit statuses and what was said. Invariant: a child dies with its group when the
test ends, and by the kernel's hand if the test itself is killed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .nursery import NURSERY

T = TypeVar("T")

POLL_S = 0.05

PATIENCE = 2.5
"""How much longer than on an idle machine things may take on a busy one."""


def eventually(condition: Callable[[], T], within_s: float, what: str) -> T:
    """The condition's first true value. The one place where a test waits: by looking again, with a deadline."""
    deadline = time.monotonic() + within_s * PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(POLL_S)
    return found


_WORKERS, _ROOM = 8, 4
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_OWN_PORTS = range(20_000 + _WORKER * _ROOM, 32_000, _WORKERS * _ROOM)
_PORTS = itertools.cycle(random.sample(_OWN_PORTS, len(_OWN_PORTS)))
"""Every one before any comes twice, and none that another worker takes: who is given one may listen only later. After
each come a few that nobody is given."""


def free_port() -> int:
    """A port nobody listens on, below those that the system gives to outgoing connections: it stays free while
    the process that had it is dead."""
    while True:
        port = next(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that ran to its end."""

    status: int
    out: str
    err: str


class Child:
    """One `shoal` process in a group of its own; its words go to files."""

    def __init__(self, arguments: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.out, self.err = log.with_suffix(".out"), log.with_suffix(".err")
        with open(self.out, "ab") as out, open(self.err, "ab") as err:
            self.process = NURSERY.bear(arguments, _environment(environment), out, err)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def stopped(self) -> bool:
        """True while SIGSTOP holds it."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        if self.alive:
            self.signal(signal.SIGKILL)
        self.process.wait()

    def ended(self, within_s: float = 60.0) -> int:
        """Its exit status, once it has one; minus the signal's number if one killed it."""
        return self.process.wait(within_s)

    def killed_itself(self, within_s: float = 60.0) -> None:
        """Wait until its failpoint has killed it."""
        assert self.ended(within_s) == -signal.SIGKILL, self.said()

    def said(self) -> str:
        return f"{self.out.read_text()}\n{self.err.read_text()}"


def run_shoal(
    arguments: list[str], environment: dict[str, str] | None = None, within_s: float = 60.0
) -> Ended:
    """A command that ends by itself."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = NURSERY.bear(arguments, _environment(environment), out, err)
        try:
            status = process.wait(within_s * PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        out.seek(0)
        err.seek(0)
        return Ended(status, out.read().decode(), err.read().decode())


def _environment(extra: dict[str, str] | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(extra or {})}
