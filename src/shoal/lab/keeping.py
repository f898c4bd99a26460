"""A lab's end of its keeper: programs started in hosts, and what becomes of them.

In flow words and descriptors; out flow `Process`es. Invariant: closing ends everything that was started, and returns
when it is gone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.lab import messages

READY_S, ANSWER_S, GONE_S = 60.0, 10.0, 10.0


class Process:
    """A program in a host."""

    def __init__(self, keeping: Keeping, number: int, host: str) -> None:
        self.host = host
        self.number = number
        self.code: int | None = None
        """Its exit status once it has ended; negative for the signal that ended it."""
        self._keeping = keeping
        self._ended = threading.Event()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Until it has ended: its exit status, or None if it still runs after so long."""
        self._ended.wait(timeout_s)
        return self.code

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to it and to those it started, unless they have left its group."""
        self._keeping.signal(self.number, number)

    def has_ended(self, code: int) -> None:
        self.code = code
        self._ended.set()


class Keeping:
    """Starts a keeper and talks to it."""

    def __init__(self, request: Mapping[str, Any], hosts: Sequence[str], addresses: Sequence[str]) -> None:
        self._hosts = hosts
        self._end, theirs = messages.pair()
        emulator, for_keeper = messages.pair()
        self.emulator = emulator
        """The control of the emulator itself."""
        self._processes: dict[int, Process] = {}
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._sending = threading.Lock()
        self.emulator_ended = False
        with tempfile.NamedTemporaryFile("w", prefix="shoal-hosts-") as names:
            names.write(hosts_file(hosts, addresses))
            names.flush()
            os.chmod(names.name, 0o644)
            self._keeper = self._start(theirs)
            full = {**request, "hosts": list(hosts), "hosts_file": names.name}
            messages.send(self._end, full, [for_keeper.fileno()])
            theirs.close()
            for_keeper.close()
            self.about = self._wait_ready()
        self._reader = threading.Thread(target=self._read, name="lab-keeper", daemon=True)
        self._reader.start()

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "shoal.lab.keeper", str(theirs.fileno()), str(os.getpid())]
        # Ctrl-C at the terminal is for the lab's process, which then ends the keeper in order.
        return subprocess.Popen(
            command, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL
        )

    def _wait_ready(self) -> dict[str, Any]:
        self._end.settimeout(READY_S)
        received = None
        with contextlib.suppress(TimeoutError):
            received = messages.receive(self._end)
        self._end.settimeout(None)
        news = received[0] if received else None
        if news is not None and news["news"] == "ready":
            return news
        self.close()
        if news is None:
            raise ShoalError("SH-LAB-03", "the lab's keeper ended early", "see what it said above")
        raise ShoalError(news["code"], news["cause"], news["next_step"])

    # --- programs ----------------------------------------------------------------------------------------

    def start(
        self,
        place: int,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        fds: tuple[int, int, int],
    ) -> Process:
        """Start a program with these descriptors as its 0, 1 and 2. Raises SH-LAB-06."""
        with self._sending:
            number = len(self._processes)
            process = Process(self, number, self._hosts[place])
            self._processes[number] = process
            told = {"host": place, "words": list(words), "environment": dict(environment)}
            answer = self._ask({"ask": "start", "number": number, "folder": str(folder), **told}, list(fds))
        if answer["why"]:
            raise ShoalError(
                "SH-LAB-06",
                f"{words[0]} cannot be started in {process.host}: {answer['why']}",
                "check its name, and that this user may run it",
            )
        return process

    def signal(self, number: int, which: int) -> None:
        with self._sending, contextlib.suppress(OSError):
            messages.send(self._end, {"ask": "signal", "number": number, "signal": int(which)})

    def signal_host(self, place: int, which: int) -> None:
        """To every process in a host."""
        with self._sending, contextlib.suppress(OSError):
            messages.send(self._end, {"ask": "signal-host", "host": place, "signal": int(which)})

    def drops(self) -> list[int]:
        """Packets that hosts' interfaces dropped because nobody took them in time."""
        with self._sending:
            found: list[int] = self._ask({"ask": "drops"})["drops"]
        return found

    def _ask(self, message: dict[str, Any], fds: list[int] | None = None) -> dict[str, Any]:
        try:
            messages.send(self._end, message, fds)
            answer = self._answers.get(timeout=ANSWER_S)
        except (OSError, queue.Empty):
            answer = {}
        if not answer:
            raise ShoalError("SH-LAB-06", "the lab's keeper does not answer", "start the lab again")
        return answer

    def _read(self) -> None:
        while received := messages.receive(self._end):
            news, _ = received
            match news["news"]:
                case "ended":
                    self._processes[news["number"]].has_ended(news["code"])
                case "emulator-ended":
                    self.emulator_ended = True
                case _:
                    self._answers.put(news)
        self._answers.put({})
        for process in self._processes.values():
            if process.code is None:
                process.has_ended(-signal.SIGKILL)

    def close(self) -> None:
        """End everything, now."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self.emulator.close()
        try:
            self._keeper.wait(GONE_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._end.close()


def hosts_file(hosts: Sequence[str], addresses: Sequence[str]) -> str:
    """What /etc/hosts is in every host."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    lines += [f"{address} {name}" for name, address in zip(hosts, addresses, strict=True)]
    return "\n".join(lines) + "\n"
