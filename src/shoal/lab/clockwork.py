"""What goes on beside the programs: the fleet's events in their time, and a watch on the processors.

In flows a lab; out flow changes to it, and a record of them. Invariant: one thread, which ends when the lab does.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from shoal.base.errors import ShoalError
from shoal.lab.cpu import CpuUse, CpuWatch
from shoal.lab.links import Step, timeline
from shoal.lab.report import Happened

if TYPE_CHECKING:
    from shoal.lab.lab import Lab

SAMPLE_S = 0.5
MOST_RECORDED = 10_000


class Clockwork:
    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._watch = CpuWatch()
        self._happened: list[Happened] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = self._events_from = 0.0

    def begin(self) -> None:
        """Events count from now."""
        self._began = self._events_from = time.monotonic()
        self._watch.begin()
        self._start()

    def begin_again(self) -> None:
        """Events count from now, the first one first; once it was stopped."""
        self._events_from = time.monotonic()
        self._stopping.clear()
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="lab-clockwork", daemon=True)
        self._thread.start()

    def forget(self) -> None:
        """Judge the processors' use from now."""
        self._watch.begin()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def seconds(self) -> float:
        return time.monotonic() - self._began if self._began else 0.0

    def cpu(self) -> CpuUse:
        self._watch.sample()
        return self._watch.use()

    def happened(self) -> tuple[Happened, ...]:
        return tuple(self._happened)

    def _run(self) -> None:
        steps = timeline(self._lab.fleet)
        step = next(steps, None)
        sample_at = SAMPLE_S
        while True:
            next_at = min(sample_at, step.at_s) if step else sample_at
            if self._stopping.wait(max(0.0, next_at - self._passed())):
                return
            if self._passed() >= sample_at:
                self._watch.sample()
                sample_at += SAMPLE_S
            while step is not None and step.at_s <= self._passed() and not self._stopping.is_set():
                self._carry_out(step)
                step = next(steps, None)

    def _passed(self) -> float:
        return time.monotonic() - self._events_from

    def _carry_out(self, step: Step) -> None:
        try:
            self._lab.change(step.change)
        except ShoalError:
            self._stopping.set()  # The lab is coming down; its report says why.
            return
        if len(self._happened) < MOST_RECORDED:
            late_s = self._passed() - step.at_s
            self._happened.append(Happened(at_s=step.at_s, late_s=late_s, what=step.what))
