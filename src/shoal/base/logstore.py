"""Where a run's log and the coordinator's small promises are kept.

One implementation keeps files on a `Disk` (nodes, simulation), one SQL rows (coordinator). In flow encoded
entries and small values; out flow the same bytes. Invariant: what a call has returned for is durable, and an
entry is appended only onto the head that its writer saw.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from shoal.base.ids import RunId

MEND_STORE = (
    "run: shoal ckpt verify --repair --from HOME, of a member; an old copy of it would lack what nodes have"
)
"""What to do about a coordinator's damaged store."""


class LogStore(Protocol):
    """All calls block until durable. Safe to call from one thread at a time per run."""

    def runs(self) -> list[RunId]:
        """Every run that has a log here, sorted."""

    def append(self, run: RunId, position: int, entry: bytes) -> None:
        """Add the entry at `position`, which must be the log's length. Raises SH-LOG-03 otherwise."""

    def length(self, run: RunId) -> int: ...

    def read(self, run: RunId, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Entries [start, stop) in order. Bytes are as stored: the caller verifies them."""

    def keep(self, run: RunId, key: str, value: bytes) -> None:
        """Remember a small value (a claim not yet sealed, say) under a key of letters, digits, '.', '-', '_'."""

    def kept(self, run: RunId, prefix: str) -> dict[str, bytes]:
        """Every kept value whose key starts with `prefix`, in key order."""

    def drop(self, run: RunId, key: str) -> None:
        """Forget a kept value, if it is there."""
