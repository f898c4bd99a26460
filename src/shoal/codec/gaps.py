"""Sets of positions to bytes, close to their entropy: gaps between positions, or a bitmap, Huffman-coded.

In flow sorted positions below `numel`; out flow bytes, and back. Invariant: `unpack_positions` is total: hostile
bytes give None or exactly `count` strictly rising positions below `numel`, and never inflate beyond the bound that
`numel` and `count` set.

The first byte names the form. Where a position in four or more is in the set, the form is its bitmap. Otherwise it
is the gaps (how many positions are left out before each one), a byte each: 255 says "255 and go on". Where gaps are
long, their lowest byte or two go as they are, being as good as random, and only the rest is coded.
"""

from __future__ import annotations

import zlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Positions: TypeAlias = npt.NDArray[np.int64]

_GO_ON = 255
_BITMAP_FROM = 4
"""The bitmap is smaller from one position in four; gaps of one or two are too short for Huffman's whole bits."""
_LONG_GAP = 400
"""From this mean gap on, escapes cost more than sending the lowest byte of each gap as it is."""
_LOW_DTYPES = (None, np.dtype("u1"), np.dtype("<u2"))
"""By form, what is sent as it is; the form after these is the bitmap."""
_BITMAP = len(_LOW_DTYPES)


def pack_positions(positions: Positions, numel: int) -> bytes:
    """Strictly rising positions below `numel`, as bytes."""
    form = _form(len(positions), numel)
    if form == _BITMAP:
        present = np.zeros(numel, np.bool_)
        present[positions] = True
        return bytes([form]) + _huffman(np.packbits(present))
    gaps = positions.copy()
    gaps[1:] -= positions[:-1] + 1
    low = _LOW_DTYPES[form]
    if low is None:
        return bytes([form]) + _huffman(_as_steps(gaps))
    return bytes([form]) + gaps.astype(low).tobytes() + _huffman(_as_steps(gaps >> 8 * form))


def unpack_positions(data: memoryview, count: int, numel: int) -> Positions | None:
    """The positions in hostile bytes, or None if they are not `count` positions below `numel`."""
    if not len(data) or data[0] > _BITMAP or not 0 <= count <= numel:
        return None
    if data[0] == _BITMAP:
        return _from_bitmap(data[1:], count, numel)
    return _from_gaps(data[1:], data[0], count, numel)


def _form(count: int, numel: int) -> int:
    if count * _BITMAP_FROM >= numel:
        return _BITMAP
    mean = numel // max(count, 1)
    return int(mean >= _LONG_GAP) + int(mean >= _LONG_GAP << 8)


def _as_steps(gaps: Positions) -> npt.NDArray[np.uint8]:
    """Each gap as bytes: as many 255 as it holds, and then what is left."""
    if not len(gaps) or int(gaps.max()) < _GO_ON:
        return gaps.astype(np.uint8)
    escapes, rest = np.divmod(gaps, _GO_ON)
    ends = np.cumsum(escapes + 1)
    steps = np.full(int(ends[-1]), _GO_ON, np.uint8)
    steps[ends - 1] = rest
    return steps


def _from_gaps(data: memoryview, form: int, count: int, numel: int) -> Positions | None:
    low = _LOW_DTYPES[form]
    raw_bytes = count * (low.itemsize if low else 0)
    if len(data) < raw_bytes:
        return None
    packed = _inflate(data[raw_bytes:], count + (numel >> 8 * form) // _GO_ON)
    if packed is None:
        return None
    steps = np.frombuffer(packed, np.uint8)
    ends = steps != _GO_ON
    if np.count_nonzero(ends) != count or (len(steps) and not ends[-1]):
        return None
    totals = np.cumsum(steps, dtype=np.int64)
    if len(steps) > count:
        totals = totals[ends]
    if low is not None:
        gaps = np.diff(totals, prepend=0) << 8 * form
        totals = np.cumsum(gaps + np.frombuffer(data[:raw_bytes], low))
    totals += np.arange(count)
    return totals if not count or totals[-1] < numel else None


def _from_bitmap(data: memoryview, count: int, numel: int) -> Positions | None:
    packed = _inflate(data, -(-numel // 8))
    if packed is None or len(packed) != -(-numel // 8):
        return None
    positions = np.flatnonzero(np.unpackbits(np.frombuffer(packed, np.uint8)))
    if len(positions) != count or (count and positions[-1] >= numel):
        return None
    return positions


def _huffman(symbols: npt.NDArray[np.uint8]) -> bytes:
    """Huffman codes only: gaps of independent positions have nothing else to find."""
    coder = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(symbols.tobytes()) + coder.flush()


def _inflate(data: memoryview, most: int) -> bytes | None:
    """What the bytes inflate to, if they are one whole stream of at most `most` bytes."""
    coder = zlib.decompressobj(-15)
    try:
        # One byte more than allowed: only then is the end of a stream of just the allowed size seen.
        found = coder.decompress(data, most + 1)
    except zlib.error:
        return None
    whole = coder.eof and not coder.unused_data and not coder.unconsumed_tail
    return found if whole and len(found) <= most else None
