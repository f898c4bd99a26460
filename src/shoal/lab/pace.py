"""Pacing: a program waits out what its device would need, so that sixteen programs on two cores are sixteen devices.

In flow a device's speed and what a step takes a device of speed 1 (environment variables that a lab sets); out flow
waits, and a record for the lab's report of those that came too late. Invariant: a paced step is never shorter than
its device's; one that is longer is counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from shoal.lab.report import PaceUse

SPEED, STEP, PACE_FOLDER = "SHOAL_LAB_SPEED", "SHOAL_LAB_STEP_S", "SHOAL_LAB_PACE_FOLDER"
"""The device's speed; seconds that a step takes a device of speed 1; where programs write how they kept pace."""


def environment_of(speed: float, step_s: float | None) -> dict[str, str]:
    """What a lab tells a host's programs of their device."""
    found = {SPEED: f"{speed:g}"}
    if step_s is not None:
        found[STEP] = f"{step_s:g}"
    return found


class Pacer:
    """Knows when a device of this speed would have done its work."""

    def __init__(self, step_s: float, speed: float = 1.0, record: Path | None = None) -> None:
        self.step_s = step_s
        """What a step takes a device of speed 1."""
        self.speed = speed
        self._record = record
        self._paced_s = self._overrun_s = 0.0

    def left(self, began: float, now: float, work_s: float) -> float:
        """How much longer this device needs for what takes one of speed 1 `work_s`; what took too long is noted."""
        device_s = work_s / self.speed
        left = began + device_s - now
        self._paced_s += device_s
        self._overrun_s += max(0.0, -left)
        self._write()
        return max(0.0, left)

    def wait(self, began: float, steps: float = 1.0) -> None:
        """Sleep until `steps` steps that began at this `time.monotonic()` would be over."""
        time.sleep(self.left(began, time.monotonic(), steps * self.step_s))

    def _write(self) -> None:
        if self._record is not None:
            with contextlib.suppress(OSError):
                values = {"paced_s": self._paced_s, "overrun_s": self._overrun_s}
                self._record.write_text(json.dumps(values), "ascii")


def pacer(environment: Mapping[str, str] | None = None) -> Pacer | None:
    """The pacer that the lab's environment asks for; None outside a lab, or if the fleet names no `step`."""
    found = os.environ if environment is None else environment
    try:
        step_s, speed = float(found[STEP]), float(found.get(SPEED, "1"))
    except (KeyError, ValueError):
        return None
    folder = found.get(PACE_FOLDER)
    record = Path(folder) / f"{found.get('SHOAL_LAB_HOST', 'host')}-{os.getpid()}.json" if folder else None
    return Pacer(step_s, speed, record) if step_s > 0 and speed > 0 else None


def read_pace(folder: Path | None) -> PaceUse:
    """What all programs wrote, added up."""
    paced = overrun = 0.0
    for path in sorted(folder.glob("*.json")) if folder else []:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            values = json.loads(path.read_text("ascii"))
            paced, overrun = paced + float(values["paced_s"]), overrun + float(values["overrun_s"])
    return PaceUse(paced_s=paced, overrun_s=overrun)
