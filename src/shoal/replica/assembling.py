"""Small blobs that are pushed in ranges, over several connections at once: gathered in memory, judged when whole.

In flow ranges from one sender; out flow whole bytes, once. Invariant: no more memory than a few blobs of bounded size,
the quietest sender's given up first; what was gathered is of one sender alone, so that nobody can spoil another's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from shoal.base.ids import BlobId, NodeId

WHOLE_BYTES = 3 << 20
"""The largest blob that goes this way; larger ones go by chunks."""
MOST_ASSEMBLING = 16


class _Gathered:
    def __init__(self, size_bytes: int) -> None:
        self.data = bytearray(size_bytes)
        self.spans: dict[int, int] = {}

    def is_whole(self) -> bool:
        end = 0
        for start, stop in sorted(self.spans.items()):
            if start > end:
                return False
            end = max(end, stop)
        return end == len(self.data)


class Assembling:
    """Ranges on their way to being blobs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gathered: OrderedDict[tuple[NodeId, BlobId], _Gathered] = OrderedDict()

    def take(
        self, sender: NodeId, blob: BlobId, offset: int, size_bytes: int, body: bytes
    ) -> bytes | bytearray | None:
        """Take a range of a blob of this size; all of it, once it is whole. Raises ValueError if that is no range."""
        if not 0 < size_bytes <= WHOLE_BYTES or not body or offset + len(body) > size_bytes:
            raise ValueError(f"no range [{offset}, {offset}+{len(body)}) of {size_bytes} bytes")
        key = (sender, blob)
        if len(body) == size_bytes:
            return body
        with self._lock:
            found = self._gathered.get(key)
            if found is None or len(found.data) != size_bytes:
                found = self._gathered[key] = _Gathered(size_bytes)
                if len(self._gathered) > MOST_ASSEMBLING:
                    self._gathered.popitem(last=False)
            self._gathered.move_to_end(key)
            found.data[offset : offset + len(body)] = body
            found.spans[offset] = max(found.spans.get(offset, 0), offset + len(body))
            if not found.is_whole():
                return None
            del self._gathered[key]
        return found.data
