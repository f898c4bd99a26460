"""Whether somebody is using this machine, for volunteers who lend it only when it is idle.

In flow the system's own measurements; out flows "" (idle) or who or what is in the way, in words. Invariant: a
machine counts as busy at once and as idle only after `QUIET_S` without a sign of use, so that training never
flickers on and off under somebody's hands.

Two things are measured: the processor time that other processes take, and, where terminals can be seen (Linux,
macOS), how long ago somebody last typed into one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import psutil

MEASURED_BY = "processor load of other programs, and the last key pressed in any terminal"
BUSY_SHARE = 0.25
"""Other processes taking more than this share of all cores is use."""
TYPED_S = 120.0
QUIET_S = 30.0
LOOK_EVERY_S = 2.0


class IdleWatch:
    """`reason()` is cheap to call often: it looks at the system at most every `LOOK_EVERY_S`."""

    def __init__(
        self,
        others_share: Callable[[], float] | None = None,
        typed_s_ago: Callable[[], float | None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._others_share = others_share or OthersLoad().share
        self._typed_s_ago = typed_s_ago or last_typed_s
        self._now = now
        self._looked_at = float("-inf")
        self._busy_until = float("-inf")
        self._reason = ""

    def reason(self) -> str:
        """Why not to train now, or ""."""
        now = self._now()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            sign = self._sign_of_use()
            if sign:
                self._busy_until, self._reason = now + QUIET_S, sign
        return self._reason if now < self._busy_until else ""

    def _sign_of_use(self) -> str:
        share = self._others_share()
        if share > BUSY_SHARE:
            return f"other programs use {share:.0%} of the processor"
        typed = self._typed_s_ago()
        if typed is not None and typed < TYPED_S:
            return f"somebody typed {typed:.0f} s ago"
        return ""


class OthersLoad:
    """The share of all cores that processes other than this one took since the last call."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._own.cpu_percent(None)
        psutil.cpu_percent(None)

    def share(self) -> float:
        total = psutil.cpu_percent(None) / 100
        own = self._own.cpu_percent(None) / 100 / (psutil.cpu_count() or 1)
        return max(0.0, total - own)


def last_typed_s() -> float | None:
    """Seconds since a key was pressed in some terminal, or None where that cannot be seen."""
    ages = []
    for user in psutil.users():
        if not user.terminal:
            continue
        try:
            ages.append(time.time() - os.stat(f"/dev/{user.terminal}").st_atime)
        except OSError:
            continue
    return max(0.0, min(ages)) if ages else None
