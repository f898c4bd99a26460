"""Values that a sparse codec keeps: as floats, or as a sign and a step of their chunk's small codebook.

In flow values and their positions; out flow bytes, and back to values, range by range. Invariant: the size follows
from how many there are and how many chunks; what opens is finite. Means are summed one after the other in
float64, in the order of positions, so that every machine finds the same codebooks.

Codebooks and 16-bit values are bfloat16: the whole range of float32, so that neither small updates vanish nor
large ones overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal.codec.gaps import Positions

Floats = npt.NDArray[np.float32]

_BF16_INFINITY = 0x7F80
_PASSES = 2
"""How often two magnitudes are fitted: first to either side of the mean, then to whichever is nearer."""


class KeptValues(Protocol):
    """Opened values, asked for by several threads at once."""

    def read(self, first: int, last: int, chunks: Positions, factor: float) -> Floats:
        """Values [first, last) of the kept, which lie in these chunks, times `factor`."""


class KeptCoding(Protocol):
    """How values are kept. `chunks` holds each value's chunk, `count` is how many chunks there are."""

    def encode(self, values: Floats, chunks: Positions, count: int) -> bytes:
        """The values as bytes."""

    def size_bytes(self, kept: int, count: int) -> int:
        """How many bytes."""

    def open(self, data: memoryview, kept: int, count: int) -> KeptValues | None:
        """What hostile bytes of the right size hold, or None if it is not finite."""


@dataclass(frozen=True, slots=True)
class _Plain:
    values: Floats

    def read(self, first: int, last: int, chunks: Positions, factor: float) -> Floats:
        return self.values[first:last] * np.float32(factor)


class Float32s:
    """Each value as it is."""

    def encode(self, values: Floats, chunks: Positions, count: int) -> bytes:
        return values.astype("<f4").tobytes()

    def size_bytes(self, kept: int, count: int) -> int:
        return 4 * kept

    def open(self, data: memoryview, kept: int, count: int) -> _Plain | None:
        values = np.frombuffer(data, "<f4").astype(np.float32)
        return _Plain(values) if bool(np.isfinite(values).all()) else None


class Bfloat16s:
    """Each value with eight bits of precision."""

    def encode(self, values: Floats, chunks: Positions, count: int) -> bytes:
        return _to_bf16(values).tobytes()

    def size_bytes(self, kept: int, count: int) -> int:
        return 2 * kept

    def open(self, data: memoryview, kept: int, count: int) -> _Plain | None:
        bits = np.frombuffer(data, "<u2")
        return _Plain(_from_bf16(bits)) if bool(((bits & 0x7FFF) < _BF16_INFINITY).all()) else None


@dataclass(frozen=True, slots=True)
class _Coded:
    books: Floats
    """A row for each chunk: its magnitudes, and then their negatives."""
    planes: tuple[npt.NDArray[np.uint8], ...]
    """The codes' bits, packed, the lowest first."""

    def read(self, first: int, last: int, chunks: Positions, factor: float) -> Floats:
        if first == last:
            return np.empty(0, np.float32)
        lowest, highest, width = int(chunks[0]), int(chunks[-1]), self.books.shape[1]
        codes = self._bits(0, first, last)
        for place in range(1, len(self.planes)):
            codes = codes | self._bits(place, first, last) << np.uint8(place)
        books = self.books[lowest : highest + 1] * np.float32(factor)
        values: Floats = books.reshape(-1).take((chunks - lowest) * width + codes.astype(np.int64))
        return values

    def _bits(self, place: int, first: int, last: int) -> npt.NDArray[np.uint8]:
        bits = np.unpackbits(self.planes[place][first // 8 : -(-last // 8)], bitorder="little")
        return bits[first % 8 : first % 8 + last - first]


@dataclass(frozen=True, slots=True)
class Codebooks:
    """Each value as its sign and one of `steps` magnitudes, one or two, of its chunk."""

    steps: int

    def encode(self, values: Floats, chunks: Positions, count: int) -> bytes:
        magnitudes = np.abs(values)
        planes = [values < 0]
        means = _means(magnitudes, chunks, count)[:, None]
        if self.steps == 2:
            for _ in range(_PASSES):
                upper = magnitudes > means.mean(axis=1)[chunks]
                means = _means(magnitudes, 2 * chunks + upper, 2 * count).reshape(count, 2)
            planes.insert(0, upper)
        return self.join(_to_bf16(means.astype(np.float32)), planes)

    def join(self, books: npt.NDArray[np.uint16], planes: Sequence[npt.NDArray[np.bool_]]) -> bytes:
        """The bytes of codebooks, one after the other, and of the codes' bits, the lowest first."""
        packed = (np.packbits(plane, bitorder="little").tobytes() for plane in planes)
        return b"".join([books.astype("<u2").tobytes(), *packed])

    def size_bytes(self, kept: int, count: int) -> int:
        return 2 * count * self.steps + -(-kept // 8) * self.steps

    def open(self, data: memoryview, kept: int, count: int) -> _Coded | None:
        bits = np.frombuffer(data[: 2 * count * self.steps], "<u2")
        if bool((bits >= _BF16_INFINITY).any()):
            return None
        means = _from_bf16(bits).reshape(count, self.steps)
        planes = np.frombuffer(data[2 * count * self.steps :], np.uint8).reshape(self.steps, -1)
        return _Coded(np.concatenate([means, -means], axis=1), tuple(planes))


CODINGS: dict[int, KeptCoding] = {1: Codebooks(1), 2: Codebooks(2), 16: Bfloat16s(), 32: Float32s()}
"""By bits a value."""


def _means(magnitudes: Floats, groups: Positions, count: int) -> npt.NDArray[np.float64]:
    """Each group's mean, 0 where it is empty."""
    sums = np.bincount(groups, weights=magnitudes, minlength=count)
    return sums / np.maximum(np.bincount(groups, minlength=count), 1)


def _to_bf16(values: Floats) -> npt.NDArray[np.uint16]:
    """To the nearest, ties to even; what would round to infinity becomes the largest there is."""
    bits = values.view(np.uint32)
    sign, size = bits >> 16 & 0x8000, bits & 0x7FFFFFFF
    rounded = size + 0x7FFF + (size >> 16 & 1) >> 16
    return np.asarray(sign | np.minimum(rounded, _BF16_INFINITY - 1), "<u2")


def _from_bf16(bits: npt.NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)
