"""An update on its way: one blob holding an encoded pseudo-gradient for each fragment (or shard) it touches.

In flow flat values by fragment; out flow bytes, and back. Invariant: `open_update` is total: hostile bytes give
None, identically on every machine, and never more memory than the layout needs.
"""

from __future__ import annotations

import msgspec

from shoal.base.layout import Layout
from shoal.codec.base import Codec, Source
from shoal.replica.parts import split_parts
from shoal.runlog.sharding import Span, cut

_MAGIC = b"shoal-update-1\n"
_MAX_HEADER_BYTES = 1 << 20


# Unknown fields are refused: skipping a deeply nested one would depend on how deep this machine's stack is.
class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    parts: list[tuple[int, int]]
    """(fragment index, payload bytes), in order."""


def encode_update(parts: list[tuple[int, bytes]]) -> bytes:
    """Pack each fragment's encoded values into one blob."""
    header = msgspec.msgpack.encode(_Header([(index, len(payload)) for index, payload in parts]))
    return b"".join([_MAGIC, len(header).to_bytes(4, "little"), header, *(payload for _, payload in parts)])


def open_update(
    blob: bytes, layout: Layout, fragments: tuple[int, ...], codec: Codec
) -> dict[int, Source] | None:
    """The values by fragment, or None unless the blob is exactly one sound update of these fragments."""
    start = len(_MAGIC) + 4
    size = int.from_bytes(blob[len(_MAGIC) : start], "little")
    if not blob.startswith(_MAGIC) or size > _MAX_HEADER_BYTES or start + size > len(blob):
        return None
    try:
        header = msgspec.msgpack.decode(blob[start : start + size], type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if tuple(index for index, _ in header.parts) != fragments or any(n < 0 for _, n in header.parts):
        return None
    view, offset = memoryview(blob), start + size
    sources: dict[int, Source] = {}
    for index, length in header.parts:
        source = codec.open(view[offset : offset + length], layout.fragments[index].numel)
        if source is None or offset + length > len(blob):
            return None
        sources[index] = source
        offset += length
    return sources if offset == len(blob) else None


def open_cut(
    blob: bytes, layout: Layout, fragments: tuple[int, ...], codec: Codec, shards: int
) -> list[tuple[Span, Source]]:
    """The values by shard of an update that was cut into about so many; those that are sound."""
    spans = cut(layout, fragments, shards)
    opened = [
        (span, codec.open(memoryview(payload), span[2] - span[1]))
        for span, payload in zip(spans, split_parts(blob, len(spans)) or (), strict=False)
    ]
    return [(span, source) for span, source in opened if source is not None]
