"""A queue that one task reads: asyncio's own counts unfinished tasks and serves many readers, which costs as much
again for every event.

In flow items from any task of one loop; out flow the same, in order, to one reader. Invariant: never more than `limit`
wait in it; what was put is got once, also if the reader is cancelled while it waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """`limit` 0 for none."""

    __slots__ = ("_items", "_limit", "_reader", "_writers")

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._items: deque[T] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writers: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def full(self) -> bool:
        return 0 < self._limit <= len(self._items)

    def put_nowait(self, item: T) -> None:
        """Raises `asyncio.QueueFull` beyond the limit."""
        if 0 < self._limit <= len(self._items):
            raise asyncio.QueueFull
        self._items.append(item)
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)

    async def put(self, item: T) -> None:
        """Wait for room, those first who came first."""
        while 0 < self._limit <= len(self._items):
            writer = asyncio.get_running_loop().create_future()
            self._writers.append(writer)
            try:
                await writer
            except asyncio.CancelledError:
                if writer in self._writers:
                    self._writers.remove(writer)
                elif not self.full():
                    self._let_one_write()  # It was this one's turn, and is another's now.
                raise
        self.put_nowait(item)

    async def get(self) -> T:
        items = self._items
        while not items:
            reader = self._reader = asyncio.get_running_loop().create_future()
            try:
                await reader
            finally:
                self._reader = None
        item = items.popleft()
        if self._writers:
            self._let_one_write()
        return item

    def _let_one_write(self) -> None:
        while self._writers:
            writer = self._writers.popleft()
            if not writer.done():
                writer.set_result(None)
                return
