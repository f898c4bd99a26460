"""Where `shoal` processes are born quickly: a process that has imported everything, and forks itself for each.

In flow command lines with an environment and where their words go; out flow process ids and, when one ends, its exit
status. Invariant: what is born is an operating-system process like any other, in a session of its own, with its own
files, signals and death; only the seconds that importing takes are saved. All of them die with the nursery, and it
dies with the tests that asked for it.

Run as a program it is the nursery itself, and talks on the socket that it was given.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from typing import BinaryIO

from shoal.base.orphans import dies_with

_LARGEST = 1 << 20
_IMPORTED = (
    "shoal.apps.cli",
    "shoal.apps.joining",
    "shoal.apps.api.desk",
    "shoal.apps.logs_checking",
    "shoal.apps.hub",
    "shoal.node.service",
    "shoal.coordinator.service",
    "shoal.worlds.real.sqlstore",
)
"""With all that these import themselves: torch above all."""


class Born:
    """A process, as `subprocess.Popen` has it."""

    def __init__(self, pid: int, ending: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ending = ending

    def poll(self) -> int | None:
        return self.returncode if self._is_over(0.0) else None

    def wait(self, timeout_s: float | None = None) -> int:
        if not self._is_over(timeout_s):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s or 0.0)
        assert self.returncode is not None
        return self.returncode

    def _is_over(self, timeout_s: float | None) -> bool:
        if self.returncode is None and select.select([self._ending], [], [], timeout_s)[0]:
            self.returncode = int(os.read(self._ending, 16) or -signal.SIGKILL)
            os.close(self._ending)
        return self.returncode is not None


class Nursery:
    """One for all tests of this process, begun when it is first needed."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None

    def bear(self, arguments: list[str], environment: dict[str, str], out: BinaryIO, err: BinaryIO) -> Born:
        """Start `shoal ARGUMENTS`."""
        line = self._begun(environment)
        ending, told = os.pipe()
        request = json.dumps([arguments, environment, os.getcwd()]).encode()
        socket.send_fds(line, [request], [out.fileno(), err.fileno(), told])
        os.close(told)
        return Born(int(line.recv(32)), ending)

    def _begun(self, environment: dict[str, str]) -> socket.socket:
        if self._line is None:
            self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env={name: value for name, value in environment.items() if not name.startswith("SHOAL_")},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                preexec_fn=dies_with(os.getpid()),
            )
            theirs.close()
            atexit.register(process.kill)
        return self._line


NURSERY = Nursery()


# --- the nursery itself ------------------------------------------------------------------------------------


def _serve(line: socket.socket) -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    endings: dict[int, int] = {}
    nursery = os.getpid()
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        ready = select.select([line.fileno(), woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(endings)
        if line.fileno() in ready:
            request, files, _, _ = socket.recv_fds(line, _LARGEST, 3)
            if not request:
                return
            out, err, told = files
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for other in (line.fileno(), woken, waking, told, *endings.values()):
                    os.close(other)
                _live(json.loads(request), out, err, nursery)
            endings[pid] = told
            os.close(out)
            os.close(err)
            line.send(str(pid).encode())


def _tell_ends(endings: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            told = endings.pop(ended[0])
            with contextlib.suppress(BrokenPipeError):
                os.write(told, str(os.waitstatus_to_exitcode(ended[1])).encode())
            os.close(told)


def _live(request: tuple[list[str], dict[str, str], str], out: int, err: int, nursery: int) -> None:
    """What the child does, to its end."""
    arguments, environment, folder = request
    os.setsid()
    dies_with(nursery)()
    for number in (signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["shoal", *arguments]
    from shoal.apps.cli import main

    main(arguments)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
