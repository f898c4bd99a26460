"""Programs on a lab's hosts, from start to report.

In flow a lab, and what each host runs; out flow the programs' output, line by line with the host's name or in files,
and the report. Invariant: returns only when every program has ended; what outlives the time allowed is ended.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.lab.fleet import EVERYONE, Command, Fleet
from shoal.lab.keeping import Process
from shoal.lab.lab import Lab
from shoal.lab.links import fleet_to_links
from shoal.lab.report import Report

LONGEST_LINE = 65536
DRAIN_S = 0.3
LOOK_S = 0.1
Say = Callable[[str, str], None]
"""Takes a host and a line that one of its programs wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    report: Report
    failed: tuple[str, ...]
    """Hosts whose program ended with another status than 0, or had to be ended."""
    timed_out: bool


def plan(fleet: Fleet, words: Sequence[str], on: Sequence[str]) -> dict[str, Command]:
    """What each host runs: the given words (on all hosts, or on some), else what the fleet file says for it.

    Raises SH-LAB-02."""
    network = fleet_to_links(fleet)
    if unknown := [name for name in on if name not in network.names]:
        listed = ", ".join(list(network.names)[:12])
        raise ShoalError("SH-LAB-02", f"--on: there is no host {unknown[0]!r}", f"there are: {listed}")
    given = set(on or network.names) if words else set()
    found: dict[str, Command] = {}
    for line in network.lines:
        for who in (line.name, line.region, EVERYONE):
            if line.name in given:
                found[line.name] = Command(run=tuple(words))
            elif who in fleet.commands:
                found[line.name] = fleet.commands[who]
            if line.name in found:
                break
    if not found:
        raise ShoalError(
            "SH-LAB-02", "nothing to run", "give a command after --, or `commands` in the fleet file"
        )
    if all(command.background for command in found.values()):
        raise ShoalError("SH-LAB-02", "every command is in the background", "leave one of them in front")
    return found


def run_plan(
    lab: Lab,
    commands: Mapping[str, Command],
    *,
    say: Say,
    folder: Path | None = None,
    timeout_s: float | None = None,
    warmup_s: float = 0.0,
) -> Outcome:
    """Start everything, wait for what is in front, end what is in the background, and report."""
    with _Output(say, folder) as output:
        run = _Run(lab, commands, output)
        timed_out = run.wait(timeout_s, warmup_s)
        unfinished = {program.host for program in run.front if program.code is None}
        lab.end_programs([*run.front, *run.behind])
        report = lab.report(timed_out=timed_out)
    failed = {program.host for program in run.front if program.code != 0} | unfinished | set(run.to_start)
    return Outcome(report=report, failed=tuple(sorted(failed)), timed_out=timed_out)


class _Run:
    """Programs that start in their time, and end in theirs."""

    def __init__(self, lab: Lab, commands: Mapping[str, Command], output: _Output) -> None:
        self._lab, self._output = lab, output
        self.to_start = dict(commands)
        self.front: list[Process] = []
        self.behind: list[Process] = []

    def wait(self, timeout_s: float | None, warmup_s: float) -> bool:
        """Until everything in front has ended; whether it took too long."""
        self._lab.begin()
        began, warming = time.monotonic(), warmup_s > 0
        while True:
            passed = time.monotonic() - began
            self._start_due(passed)
            if warming and passed >= warmup_s:
                warming = False
                self._lab.judge_from_now()
            running = [program for program in self.front if program.code is None]
            in_front = [command for command in self.to_start.values() if not command.background]
            if not running and not in_front:
                return False
            if timeout_s is not None and passed >= timeout_s:
                return True
            if running:
                running[0].wait(LOOK_S)
            else:
                time.sleep(LOOK_S)

    def _start_due(self, passed_s: float) -> None:
        for host, command in list(self.to_start.items()):
            if (command.after or 0.0) > passed_s:
                continue
            del self.to_start[host]
            words = ["sh", "-c", command.run] if isinstance(command.run, str) else list(command.run)
            with self._output.of(host) as (out, err):
                program = self._lab.start(host, words, output=out, errors=err)
            (self.behind if command.background else self.front).append(program)


class _Output:
    """Programs' output: to files, or through pipes to someone who is told each line."""

    def __init__(self, say: Say, folder: Path | None) -> None:
        self._say, self._folder = say, folder
        self._selector = selectors.DefaultSelector()
        self._rests: dict[int, bytes] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="lab-output", daemon=True)

    def __enter__(self) -> _Output:
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ShoalError(
                    "SH-LAB-06",
                    f"output cannot be written to {self._folder}: {error}",
                    "choose another folder",
                ) from None
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @contextlib.contextmanager
    def of(self, host: str) -> Iterator[tuple[int, int]]:
        """Descriptors for a program's output and errors, to be closed here once it has them."""
        if self._folder is not None:
            files = [self._folder / f"{host}.{kind}" for kind in ("out", "err")]
            out, err = (os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for file in files)
        else:
            out, err = self._pipe(host), self._pipe(host)
        try:
            yield out, err
        finally:
            os.close(out)
            os.close(err)

    def _pipe(self, host: str) -> int:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._rests[reading] = b""
        self._selector.register(reading, selectors.EVENT_READ, host)
        return writing

    def _pump(self) -> None:
        """Until told to stop; then what is there already, without waiting for those who keep a pipe open."""
        while not self._stopping.is_set():
            self._pass_on(LOOK_S)
        ends = time.monotonic() + DRAIN_S
        while self._pass_on(0.0) and time.monotonic() < ends:
            pass
        for key in list(self._selector.get_map().values()):
            self._finish(int(key.fd), key.data)
        self._selector.close()

    def _pass_on(self, wait_s: float) -> bool:
        """Whether anything came."""
        if not self._selector.get_map():
            self._stopping.wait(wait_s)
            return False
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            self._read(int(key.fd), key.data)
        return bool(ready)

    def _read(self, fd: int, host: str) -> None:
        data = os.read(fd, LONGEST_LINE)
        if not data:
            self._finish(fd, host)
            return
        *lines, rest = (self._rests[fd] + data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self._rests[fd] = rest
        for line in lines:
            self._say(host, line.decode("utf-8", "replace"))

    def _finish(self, fd: int, host: str) -> None:
        if rest := self._rests.pop(fd):
            self._say(host, rest.decode("utf-8", "replace"))
        self._selector.unregister(fd)
        os.close(fd)
