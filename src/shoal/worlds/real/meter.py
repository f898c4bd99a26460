"""How many bytes this process has sent and received.

In flow sizes from any thread; out flow totals. Invariant: totals only grow, and control and bulk are
counted apart, because one is latency and the other is the volunteer's bill.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes above TLS, since the process started: frames for control, heads and bodies for bulk."""

    control_up_bytes: int = 0
    control_down_bytes: int = 0
    bulk_up_bytes: int = 0
    bulk_down_bytes: int = 0


FADING = 0.5
"""How much of the packets counted before still count once so many new ones have been."""
FADES_AFTER = 1000


class Meter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control_up = self._control_down = self._bulk_up = self._bulk_down = 0
        self._packets = self._again = 0.0

    def total(self) -> Traffic:
        with self._lock:
            return Traffic(
                control_up_bytes=self._control_up,
                control_down_bytes=self._control_down,
                bulk_up_bytes=self._bulk_up,
                bulk_down_bytes=self._bulk_down,
            )

    def control(self, *, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self._control_up += up
            self._control_down += down

    def bulk(self, *, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self._bulk_up += up
            self._bulk_down += down

    def packets(self, sent: int, again: int) -> None:
        """A connection has sent so many packets, some of them again."""
        with self._lock:
            if self._packets > FADES_AFTER:
                self._packets, self._again = FADING * self._packets, FADING * self._again
            self._packets, self._again = self._packets + max(0, sent), self._again + max(0, again)

    def resent(self) -> float:
        """The share of packets that were sent again, lately; 0 while nothing is known."""
        with self._lock:
            return min(1.0, self._again / self._packets) if self._packets else 0.0
