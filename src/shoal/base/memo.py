"""Answers that were worked out lately, within a budget of bytes.

In flow answers, each with what it takes; out flow the same while they are new. Invariant: however long a process lives
and whatever it meets, no more than the budget is kept, as callers count it, and nothing here is the only copy of
anything.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

SLOT_BYTES = 100
"""What a dictionary takes for one more key, at most."""
PARTS = 4


class Memo(Generic[K, V]):
    """Safe from any thread without a lock: it is never walked through. It is kept in parts, by age: when the newest is
    full another begins, and the oldest goes."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._part_bytes = budget_bytes // PARTS
        self.clear()

    def clear(self) -> None:
        self._parts: tuple[dict[K, V], ...] = tuple({} for _ in range(PARTS))
        self._newest_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def get(self, key: K) -> V | None:
        for part in self._parts:
            found = part.get(key)
            if found is not None:
                return found
        return None

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Keep an answer; `size_bytes` is what key and value take together. One that is too large is not kept."""
        whole = size_bytes + SLOT_BYTES
        if whole > self._part_bytes:
            return
        if self._newest_bytes + whole > self._part_bytes:
            self._parts = ({}, *self._parts[:-1])
            self._newest_bytes = 0
        self._parts[0][key] = value
        self._newest_bytes += whole
