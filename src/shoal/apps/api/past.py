"""The latest records of one kind, older ones packed: a round takes kilobytes as objects, some hundred bytes here.

In flow records, one after another; out flow the same, in order. Invariant: no more than `most` are kept, only some
hundred of them as objects, and a record that was packed is equal to what it was.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from shoal.apps.api.records import Record

R = TypeVar("R", bound=Record)

OPEN, BLOCK = 64, 64
"""The latest so many are never packed, for these are asked for all the time; the others are, so many at a time."""


class Past(Generic[R]):
    """A bounded list of which the oldest records go first."""

    def __init__(self, kind: type[R], most: int) -> None:
        self._most = most
        self._form: TypeAdapter[list[R]] = TypeAdapter(list[kind])  # type: ignore[valid-type]
        self._packed: deque[bytes] = deque()
        """Blocks of `BLOCK` records each, the oldest first."""
        self._open: list[R] = []

    def __len__(self) -> int:
        return BLOCK * len(self._packed) + len(self._open)

    def append(self, record: R) -> None:
        self._open.append(record)
        if len(self._open) >= OPEN + BLOCK:
            self._packed.append(self._pack(self._open[:BLOCK]))
            del self._open[:BLOCK]
        if len(self) > self._most:
            self._packed.popleft()

    def __iter__(self) -> Iterator[R]:
        for block in list(self._packed):
            yield from self._unpack(block)
        yield from list(self._open)

    def newest_first(self) -> Iterator[R]:
        """Those that are here now; another thread may walk through them meanwhile."""
        return self._backwards(self._open[::-1], [*reversed(self._packed)])

    def _backwards(self, records: list[R], packed: list[bytes]) -> Iterator[R]:
        yield from records
        for block in packed:
            yield from reversed(self._unpack(block))

    def between(self, start: int, stop: int) -> list[R]:
        """Records by their places, the oldest kept has 0; fewer where there are none."""
        stop = min(stop, len(self))
        found: list[R] = []
        while start < stop:
            number, within = divmod(start, BLOCK)
            if number < len(self._packed):
                found += self._unpack(self._packed[number])[within : within + stop - start]
            else:
                before = BLOCK * len(self._packed)
                found += self._open[start - before : stop - before]
            start = min(stop, (number + 1) * BLOCK) if number < len(self._packed) else stop
        return found

    def latest(self, count: int) -> list[R]:
        """The last so many, oldest first."""
        return self.between(max(0, len(self) - count), len(self))

    def replace(self, place: int, record: R) -> None:
        """Put another record in a place."""
        number, within = divmod(place, BLOCK)
        if number < len(self._packed):
            block = self._unpack(self._packed[number])
            block[within] = record
            self._packed[number] = self._pack(block)
        else:
            self._open[place - BLOCK * len(self._packed)] = record

    def change_latest(self, count: int, change: Callable[[R], R]) -> None:
        """Put what `change` makes of them in the places of the last so many."""
        start, before = max(0, len(self) - count), BLOCK * len(self._packed)
        for number in range(start // BLOCK, len(self._packed)):
            block, first = self._unpack(self._packed[number]), max(0, start - number * BLOCK)
            self._packed[number] = self._pack([*block[:first], *map(change, block[first:])])
        first = max(0, start - before)
        self._open[first:] = map(change, self._open[first:])

    def _pack(self, block: list[R]) -> bytes:
        return zlib.compress(self._form.dump_json(block))

    def _unpack(self, block: bytes) -> list[R]:
        return self._form.validate_json(zlib.decompress(block))
