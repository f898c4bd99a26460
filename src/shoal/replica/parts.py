"""A blob of parts: bytes that say themselves where they may be cut, so that one part can be fetched and checked alone.

In flow payloads in order; out flow one blob's bytes, and the sizes of its parts. Invariant: the sizes are a function of
the bytes alone, the header being the first part; whatever does not fit exactly has no parts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from shoal.base.disk import Buffer

MAGIC = b"shoal-parts-1\n"
MAX_PARTS = 1 << 12
_COUNT = struct.Struct("<I")
FIRST_BYTES = len(MAGIC) + _COUNT.size
"""What of a blob tells how long its header is."""


def join_parts(payloads: Sequence[bytes]) -> bytes:
    """One blob of these payloads, none of them empty."""
    sizes = struct.pack(f"<{len(payloads)}Q", *map(len, payloads))
    return b"".join([MAGIC, _COUNT.pack(len(payloads)), sizes, *payloads])


def header_bytes(first: Buffer) -> int:
    """How long the header is of a blob that begins so; 0 if it is not one of parts."""
    if len(first) < FIRST_BYTES or first[: len(MAGIC)] != MAGIC:
        return 0
    (count,) = _COUNT.unpack_from(first, len(MAGIC))
    return FIRST_BYTES + 8 * count if 0 < count <= MAX_PARTS else 0


def sizes_of(header: Buffer, size_bytes: int) -> tuple[int, ...]:
    """The sizes of all parts, the header's first, of a blob of so many bytes that begins so; () if it has none."""
    length = header_bytes(header)
    if not length or len(header) < length:
        return ()
    sizes = (length, *struct.unpack_from(f"<{(length - FIRST_BYTES) // 8}Q", header, FIRST_BYTES))
    return sizes if sum(sizes) == size_bytes and all(sizes) else ()


def split_parts(blob: bytes, count: int) -> list[bytes] | None:
    """The payloads of a blob that has exactly so many; None if it has not."""
    sizes = sizes_of(blob, len(blob))
    if len(sizes) != count + 1:
        return None
    payloads, offset = [], sizes[0]
    for size in sizes[1:]:
        payloads.append(blob[offset : offset + size])
        offset += size
    return payloads
