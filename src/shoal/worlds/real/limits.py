"""What a volunteer lends of the line: bytes per second each way, and bytes per calendar month.

In flow sizes about to be moved; out flow waits, or a refusal. Invariant: the persisted monthly count is
never below what was moved, whatever moment the process dies; so the cap is never exceeded by forgetting.
"""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.base.disk import Disk, write_atomic
from shoal.base.errors import ShoalError
from shoal.base.units import show_bytes

MONTH_FILE = "limits/month.json"
_LEASE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the volunteer allows; None is no limit."""

    max_up_bytes_s: float | None = None
    max_down_bytes_s: float | None = None
    month_bytes: int | None = None


class Bucket:
    """A token bucket shared by all threads: reservations queue in order, nobody is starved."""

    def __init__(self, rate_bytes_s: float, now: Callable[[], float] = time.monotonic) -> None:
        if rate_bytes_s <= 0:
            raise ValueError(f"{rate_bytes_s} is not a rate")
        self.rate_bytes_s = rate_bytes_s
        # A twentieth of a second's worth: enough to smooth timers, too little to bend the rate.
        self.piece_bytes = int(min(max(rate_bytes_s / 20, 1024), 256 << 10))
        self._now = now
        self._lock = threading.Lock()
        self._free_at = now()

    def reserve(self, size_bytes: int) -> float:
        """Book `size_bytes` and say how long to wait before moving them, in seconds."""
        with self._lock:
            now = self._now()
            start = max(self._free_at, now - self.piece_bytes / self.rate_bytes_s)
            self._free_at = start + size_bytes / self.rate_bytes_s
            return max(0.0, self._free_at - now)

    def give_back(self, size_bytes: int) -> None:
        """Undo a booking that was not used."""
        with self._lock:
            self._free_at -= size_bytes / self.rate_bytes_s


class MonthlyCap:
    """Counts bytes against this calendar month's (UTC) cap, with the count kept on disk.

    Bytes are leased from the file in portions before they are moved: after a crash the unused rest of a
    portion counts as moved.
    """

    def __init__(self, disk: Disk, cap_bytes: int, wall_ms: Callable[[], int]) -> None:
        self._disk = disk
        self._cap = cap_bytes
        self._wall_ms = wall_ms
        self._portion = max(1, min(_LEASE_BYTES, cap_bytes // 64))
        self._lock = threading.Lock()
        self._month, self._used = self._load()
        self._leased = self._used

    def take(self, size_bytes: int) -> None:
        """Count `size_bytes`. Raises `ShoalError` SH-JOIN-10, and counts nothing, if the cap has no room."""
        with self._lock:
            self._begin_month()
            if self._used + size_bytes > self._cap:
                raise self._spent(size_bytes)
            self._add(size_bytes)

    def count(self, size_bytes: int) -> None:
        """Count what has been moved already, room or not."""
        with self._lock:
            self._begin_month()
            self._add(size_bytes)

    def refund(self, size_bytes: int) -> None:
        """Take back what was counted but not moved."""
        with self._lock:
            self._used = max(0, self._used - size_bytes)

    def used_bytes(self) -> int:
        with self._lock:
            return self._used if self._month == self._this_month() else 0

    def close(self) -> None:
        """Return the unused part of the lease."""
        with self._lock:
            if self._leased != self._used:
                self._leased = self._used
                self._keep(self._used)

    def _begin_month(self) -> None:
        month = self._this_month()
        if month != self._month:
            self._month, self._used, self._leased = month, 0, 0

    def _add(self, size_bytes: int) -> None:
        self._used += size_bytes
        if self._used > self._leased:
            self._leased = max(self._used, min(self._used + self._portion, self._cap))
            self._keep(self._leased)

    def _spent(self, size_bytes: int) -> ShoalError:
        return ShoalError(
            "SH-JOIN-10",
            f"{show_bytes(self._used)} of this month's {show_bytes(self._cap)} are used,"
            f" which leaves no room for {show_bytes(size_bytes)} more",
            "raise the monthly limit, or wait for the next calendar month",
        )

    def _this_month(self) -> str:
        return f"{datetime.datetime.fromtimestamp(self._wall_ms() / 1000, datetime.UTC):%Y-%m}"

    def _load(self) -> tuple[str, int]:
        month = self._this_month()
        try:
            kept = json.loads(self._disk.read(MONTH_FILE, 0, 1024))
            used = int(kept["used_bytes"]) if kept["month"] == month else 0
        except FileNotFoundError:
            return month, 0
        except (ValueError, KeyError, TypeError):
            # An unreadable count must not hand out a second allowance.
            return month, self._cap
        return month, max(0, used)

    def _keep(self, used: int) -> None:
        text = json.dumps({"month": self._month, "used_bytes": used})
        write_atomic(self._disk, MONTH_FILE, text.encode(), lambda point: None)


class Throttle:
    """All limits of one process. Bulk is held to rates and month; control, which is small, to the month alone."""

    def __init__(self, limits: Limits, disk: Disk, wall_ms: Callable[[], int]) -> None:
        self._up = Bucket(limits.max_up_bytes_s) if limits.max_up_bytes_s else None
        self._down = Bucket(limits.max_down_bytes_s) if limits.max_down_bytes_s else None
        self._month = (
            MonthlyCap(disk, limits.month_bytes, wall_ms) if limits.month_bytes is not None else None
        )
        self._closed = threading.Event()
        self.counts_months = self._month is not None
        self.up_piece_bytes = self._up.piece_bytes if self._up else None
        self.down_piece_bytes = self._down.piece_bytes if self._down else None

    def admit(self, size_bytes: int) -> None:
        """Charge a transfer, either way, to the month before it starts. Raises SH-JOIN-10."""
        if self._month:
            self._month.take(size_bytes)

    def count(self, size_bytes: int) -> None:
        """Charge to the month what came unasked, whether or not there was room for it."""
        if self._month:
            self._month.count(size_bytes)

    def refund(self, size_bytes: int) -> None:
        """Take back what was charged but not moved."""
        if self._month:
            self._month.refund(size_bytes)

    def wait_up(self, size_bytes: int, deadline: float) -> None:
        """Block until `size_bytes` may be sent. Raises `TimeoutError` if that is after `deadline`."""
        if self._up:
            self._wait(self._up, size_bytes, deadline)

    def wait_down(self, size_bytes: int, deadline: float) -> None:
        """Block until `size_bytes` more may be received. Raises `TimeoutError` likewise."""
        if self._down:
            self._wait(self._down, size_bytes, deadline)

    def close(self) -> None:
        """Wake whoever waits, and settle the month's count."""
        self._closed.set()
        if self._month:
            self._month.close()

    def _wait(self, bucket: Bucket, size_bytes: int, deadline: float) -> None:
        wait_s = bucket.reserve(size_bytes)
        if time.monotonic() + wait_s > deadline:
            bucket.give_back(size_bytes)
            raise TimeoutError(f"the rate limit leaves no room for {size_bytes} bytes before the deadline")
        if wait_s > 0 and self._closed.wait(wait_s):
            raise TimeoutError("closed while waiting for the rate limit")
