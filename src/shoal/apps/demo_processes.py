"""The demo's coordinator and nodes: real operating-system processes, none of which outlives the demo.

In flow commands; out flow processes, their first words and their ends. Invariant: a child is killed by the
kernel when the demo dies, even by SIGKILL (Linux), and by us in every other case.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from time import monotonic

from shoal.base.errors import ShoalError
from shoal.base.orphans import dies_with

STOP_S = 8.0


@dataclass(slots=True)
class Child:
    name: str
    process: subprocess.Popen[str]
    lines: Queue[str] = field(default_factory=Queue)
    """What it printed and nobody has read yet."""

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


class Family:
    """Starts children and ends them all; use it in a `with` statement, from the main thread."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            self.kill(child)

    def start(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> Child:
        """`shoal` with these arguments; what it says on stderr goes to a file."""
        self._logs.mkdir(parents=True, exist_ok=True)
        with open(self._logs / f"{name}.log", "a", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "shoal.apps.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=dies_with(os.getpid()),
            )
        child = Child(name, process)
        threading.Thread(target=_read, args=(child,), daemon=True, name=f"read {name}").start()
        self._children.append(child)
        return child

    def kill(self, child: Child) -> None:
        """SIGKILL to its whole process group."""
        if child.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()

    def stop(self, child: Child) -> None:
        """Ask it to end; kill it if it does not."""
        if child.alive:
            child.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(STOP_S)
        self.kill(child)

    def await_line(self, child: Child, wanted: Callable[[str], bool], timeout_s: float) -> list[str]:
        """What the child says up to a wanted line. Raises SH-RUN-01 if it ends or stays silent instead."""
        said: list[str] = []
        deadline = monotonic() + timeout_s
        while not said or not wanted(said[-1]):
            try:
                said.append(child.lines.get(timeout=0.1))
            except Empty:
                if not child.alive or monotonic() > deadline:
                    raise self.failed(child) from None
        return said

    def failed(self, child: Child) -> ShoalError:
        """What became of a child that should be well, in its own last words."""
        log = self._logs / f"{child.name}.log"
        words = log.read_text("utf-8").strip().splitlines()[-3:] if log.exists() else []
        status = child.process.poll()
        state = "does not answer" if status is None else f"ended with status {status}"
        return ShoalError(
            "SH-RUN-01", f"{child.name} {state}: {' | '.join(words) or 'it said nothing'}", f"read {log}"
        )


def _read(child: Child) -> None:
    assert child.process.stdout is not None
    for line in child.process.stdout:
        child.lines.put(line.rstrip("\n"))
