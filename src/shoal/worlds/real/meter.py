"""How many bytes this process has sent and received.

In flow sizes from any thread; out flow totals. Invariant: totals only grow, and control and bulk are
counted apart, because one is latency and the other is the volunteer's bill.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


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
        self._total = Traffic()
        self._packets = self._again = 0.0

    def total(self) -> Traffic:
        return self._total

    def control(self, *, up: int = 0, down: int = 0) -> None:
        with self._lock:
            old = self._total
            self._total = replace(
                old,
                control_up_bytes=old.control_up_bytes + up,
                control_down_bytes=old.control_down_bytes + down,
            )

    def bulk(self, *, up: int = 0, down: int = 0) -> None:
        with self._lock:
            old = self._total
            self._total = replace(
                old, bulk_up_bytes=old.bulk_up_bytes + up, bulk_down_bytes=old.bulk_down_bytes + down
            )

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
