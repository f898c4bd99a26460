"""One codec after another: a first stage keeps a few numbers, and a dense codec sends them.

In flow values; out flow how many there were and how many numbers are kept, these as the dense codec has them, and where
they lie. What the first stage chooses from is its space: the values themselves (`top-k`), or the cosines of each
short chunk of them (`dct`). In either, the largest of each chunk are kept, and no zeros.

Invariant: opening is total, and takes less memory than the fragment. Devices agree where space and dense codec do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from shoal.codec.base import (
    Source,
    all_finite,
    check_block,
    check_encodable,
    decode_whole,
    in_rows,
    too_large,
)
from shoal.codec.dct import CosineSpace
from shoal.codec.dense import DENSE
from shoal.codec.gaps import Positions, pack_positions, unpack_positions
from shoal.codec.scattered import ScatteredSource
from shoal.codec.selection import largest

Floats = npt.NDArray[np.float32]

_HEADER = struct.Struct("<QQ")
_DENSEST = 0.25
"""Above this, positions take more memory than values, and a dense codec fewer bytes."""


class Space(Protocol):
    """What a first stage chooses from."""

    def enter(self, flat: torch.Tensor) -> torch.Tensor:
        """The numbers that values become: as many, in whole chunks."""

    def leave(self, positions: Positions, numbers: torch.Tensor, numel: int) -> Source | None:
        """What the kept numbers say of the values; None if they do not lie where encoding leaves them."""


@dataclass(frozen=True, slots=True)
class _Kept:
    values: Floats

    def read(self, first: int, last: int, chunks: Positions, factor: float) -> Floats:
        return self.values[first:last] * np.float32(factor)


@dataclass(frozen=True, slots=True)
class ValueSpace:
    """The values themselves."""

    chunk: int
    keep: int

    def __post_init__(self) -> None:
        check_block("chunk", self.chunk)

    def enter(self, flat: torch.Tensor) -> torch.Tensor:
        return in_rows(flat, self.chunk).view(-1)

    def leave(self, positions: Positions, numbers: torch.Tensor, numel: int) -> Source | None:
        if len(positions) and positions[-1] >= numel:
            return None
        return ScatteredSource(positions, _Kept(numbers.numpy()), numel, 0)


SPACES: dict[str, Callable[[int, int], Space]] = {"top-k": ValueSpace, "dct": CosineSpace}


class ChainCodec:
    """The largest `density` of each chunk of what `first` names, at least one, sent by the dense codec `then`. Use it
    with error feedback."""

    def __init__(
        self, first: str = "top-k", then: str = "int8", density: float = 1 / 32, chunk: int = 4096
    ) -> None:
        for name, value, table in (("first", first, SPACES), ("then", then, DENSE)):
            if value not in table:
                raise ValueError(f"{name} must be one of {', '.join(table)}, not {value}")
        if not 0 < density <= _DENSEST:
            raise ValueError(f"density must be above 0 and at most {_DENSEST}, not {density}")
        self._chunk, self._keep = chunk, max(1, round(density * chunk))
        self._space, self._then = SPACES[first](chunk, self._keep), DENSE[then]()

    def encode(self, values: torch.Tensor, seed: int = 0) -> bytes:
        flat = check_encodable(values)
        numbers = self._space.enter(flat)
        if not all_finite(numbers) or not self._is_bounded(torch.stack(torch.aminmax(numbers)) * 2):
            raise too_large("a chain's first stage")
        positions, kept = largest(numbers, self._chunk, self._keep)
        sent = self._then.encode(torch.from_numpy(kept), seed) if len(kept) else b""
        return _HEADER.pack(flat.numel(), len(kept)) + sent + pack_positions(positions, numbers.numel())

    def open(self, payload: memoryview, numel: int) -> Source | None:
        if len(payload) < _HEADER.size:
            return None
        claimed, kept = _HEADER.unpack_from(payload)
        chunks = -(-numel // self._chunk)
        if claimed != numel or kept > chunks * self._keep:
            return None
        end = _HEADER.size + (self._then.size_bytes(kept) if kept else 0)
        positions = unpack_positions(payload[end:], kept, chunks * self._chunk)
        numbers = self._open_numbers(payload[_HEADER.size : end], kept)
        if positions is None or numbers is None or not self._is_bounded(numbers):
            return None
        return self._space.leave(positions, numbers, numel)

    def _open_numbers(self, payload: memoryview, kept: int) -> torch.Tensor | None:
        if not kept:
            return torch.empty(0)
        source = self._then.open(payload, kept)
        return None if source is None else decode_whole(source, kept)

    def _is_bounded(self, numbers: torch.Tensor) -> bool:
        """A chunk's numbers may be added up, each times 1 at the most, and stay finite."""
        return all_finite(numbers * float(2 * self._keep))


def dct(density: float = 0.125, chunk: int = 64, then: str = "int8") -> ChainCodec:
    """The largest cosines of each short chunk. Use it with error feedback."""
    return ChainCodec("dct", then, density, chunk)
