"""Chunks of an arriving blob that this disk has already: in an older version of the same state, say.

In flow what arrives, what of it is missing and what is stored; out flow chunks that need not be fetched. Invariant: a
chunk is handed out only if its content has the hash that the arriving blob's list names; where it lay does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import blake3

from shoal.base.ids import BlobId

ALIKE = 0.01
"""Versions of one state have the same size, but for their headers."""


def look_alikes(size_bytes: int, stored: Mapping[BlobId, int]) -> list[BlobId]:
    """Stored blobs that may be another version of one of this size."""
    return sorted(blob for blob, size in stored.items() if abs(size - size_bytes) <= ALIKE * size_bytes)


def borrowed(
    missing: Mapping[int, bytes],
    others: Iterable[tuple[tuple[bytes, ...], Callable[[int], bytes]]],
) -> Iterator[tuple[int, bytes]]:
    """The missing chunks (index to hash) that others have: each other is its chunks' hashes and how to read one."""
    wanted = {hashed: index for index, hashed in sorted(missing.items(), reverse=True)}
    for hashes, read in others:
        for place, hashed in enumerate(hashes):
            if hashed in wanted:
                data = read(place)
                if blake3.blake3(data).digest() == hashed:
                    yield wanted.pop(hashed), data
