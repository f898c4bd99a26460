"""Whether the processors had time to spare, sampled from the kernel's own counts.

In flow moments; out flows how much of the time they were saturated. Invariant: only the processors that this
process may run on count.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SATURATED = 0.95
"""Busy beyond this share over one sample: programs had to wait for each other."""
LEAST_TICKS = 10
"""A sample of fewer is all rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    cores: int
    busy_mean: float
    saturated_share: float
    """Of the samples."""
    samples: int


def read_ticks(text: str, cores: set[int]) -> tuple[int, int]:
    """Busy and all ticks so far of these processors, from the text of /proc/stat."""
    busy = total = 0
    for row in text.splitlines():
        name, *cells = row.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            ticks = [int(cell) for cell in cells[:8]]
            idle = ticks[3] + ticks[4]
            total += sum(ticks)
            busy += sum(ticks) - idle
    return busy, total


class CpuWatch:
    def __init__(self) -> None:
        self._cores = os.sched_getaffinity(0)
        self._last = self._read()
        self._shares: list[float] = []

    def _read(self) -> tuple[int, int]:
        return read_ticks(Path("/proc/stat").read_text("ascii"), self._cores)

    def sample(self) -> None:
        """Note how busy it was since the last sample."""
        busy, total = self._read()
        if total - self._last[1] >= LEAST_TICKS:
            self._shares.append((busy - self._last[0]) / (total - self._last[1]))
            self._last = (busy, total)

    def begin(self) -> None:
        """Forget everything so far."""
        self._last = self._read()
        self._shares = []

    def use(self) -> CpuUse:
        count = len(self._shares)
        return CpuUse(
            cores=len(self._cores),
            busy_mean=sum(self._shares) / count if count else 0.0,
            saturated_share=sum(share >= SATURATED for share in self._shares) / count if count else 0.0,
            samples=count,
        )
