"""One `shoal` process that a lent machine has on: for what it was begun, and when it may be begun again.

In flow what is wanted now, again and again; out flow a process, and what it printed that is for us. Invariant: at most
one at a time; it is asked to leave, and given time for that, before another begins; whoever lent the machine is never
made to wait for it. What fails is begun again later each time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from shoal.base.orphans import dies_with

LEAVES_S = 60.0
"""How long it may take to leave before it is killed."""
RETRY_S, LONGEST_RETRY_S = 10.0, 300.0
"""After one that failed, this long, and twice as long each time."""


class LentChild:
    """`heard` is given each JSON object that it prints, from another thread; None if its words are for people."""

    def __init__(self, heard: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._heard = heard
        self._what: object = None
        self._process: subprocess.Popen[bytes] | None = None
        self._listening: threading.Thread | None = None
        self._leaving_at: float | None = None
        self._failed = 0
        self._not_before = 0.0

    @property
    def is_on(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tend(self, what: object, arguments: list[str] | None) -> bool:
        """Have `shoal ARGUMENTS` on for this; None for nothing. Without arguments what is on for it goes on, and
        nothing begins. True if it has ended by itself just now."""
        now, ended = time.monotonic(), False
        if self.is_on:
            if what is None or what != self._what:
                self._leave(now)
            return False
        if self._process is not None:
            ended = self._ended(now)
        if what != self._what:
            self._what, self._failed, self._not_before = what, 0, 0.0
        if what is not None and arguments and now >= self._not_before and not ended:
            self._begin(arguments)
        return ended

    def end(self) -> None:
        """Let it leave, and wait until it has."""
        while self.is_on:
            self._leave(time.monotonic())
            time.sleep(0.05)
        self._process = None

    def _begin(self, arguments: list[str]) -> None:
        # A session of its own: Ctrl-C is for us, and we let it leave.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shoal.apps.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._heard else None,
            start_new_session=True,
            preexec_fn=dies_with(os.getpid()),
        )
        self._leaving_at = None
        if self._heard is not None and self._process.stdout is not None:
            listen = threading.Thread(target=_listen, args=(self._process.stdout, self._heard), daemon=True)
            listen.start()
            self._listening = listen

    def _leave(self, now: float) -> None:
        assert self._process is not None
        if self._leaving_at is None:
            self._leaving_at = now
            # Not SIGINT: Python may lose that one while it imports, and the child would stay.
            self._process.terminate()
        elif now - self._leaving_at > LEAVES_S:
            self._process.kill()

    def _ended(self, now: float) -> bool:
        """Whether nobody had asked it to."""
        assert self._process is not None
        asked, status = self._leaving_at is not None, self._process.returncode
        self._process = None
        self._failed = self._failed + 1 if status and not asked else 0
        wait_s = min(RETRY_S * 2 ** (self._failed - 1), LONGEST_RETRY_S) if self._failed else 0.0
        self._not_before = now + wait_s
        return not asked


def _listen(out: IO[bytes], heard: Callable[[dict[str, Any]], None]) -> None:
    for line in out:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            heard(found)
