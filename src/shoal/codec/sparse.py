"""Top-k: only the largest values are sent, what they are in few bits and where they are close to the entropy.

In flow values; out flow how many there were and how many are kept, the kept values, then their positions. Invariant:
decoding needs no count for any chunk: which chunk a kept value belongs to follows from where it lies.

`share` says who competes: the values of each chunk, so that each sends equally many, or those of the whole
fragment, so that chunks with more energy send more. With `bits: 1` and `share: fragment` a value costs a sign and
its place in a ternary map: 0.57 bit for each value of the fragment at a density of 0.1.
"""

from __future__ import annotations

import copy
import struct

import numpy as np
import torch

from shoal.codec.base import check_encodable
from shoal.codec.fused import Started, try_fused
from shoal.codec.gaps import Positions, pack_positions, unpack_positions
from shoal.codec.kept import CODINGS, Codebooks
from shoal.codec.scattered import ScatteredSource, check_density
from shoal.codec.selection import Floats, largest

SHARES = ("chunk", "fragment")
_HEADER = struct.Struct("<QQ")
_LEAST_CHUNK = 16
_LONGEST_FUSED = 16384
"""The kernel notes a place in 14 bits."""
_ONE_CHUNK = 62
"""A shift that leaves nothing of any position: all lie in chunk 0."""


class SparseCodec:
    """Keeps `density` of the values, at least one where they compete, and no zeros. Use it with error feedback. Raise
    the density until (rounds x density) is well above one, or some values never travel; raise `bits` before it
    where the kept values of one chunk differ much in size. `chunk` 0 is the whole fragment."""

    def __init__(self, density: float = 0.01, chunk: int = 0, bits: int = 32, share: str = "chunk") -> None:
        if chunk and (not _LEAST_CHUNK <= chunk < 1 << _ONE_CHUNK or chunk & (chunk - 1)):
            raise ValueError(
                f"chunk must be a power of two from {_LEAST_CHUNK}, or 0 for the whole fragment, not {chunk}"
            )
        if bits not in CODINGS:
            raise ValueError(f"bits must be one of {', '.join(map(str, CODINGS))}, not {bits}")
        if share not in SHARES:
            raise ValueError(f"share must be one of {', '.join(SHARES)}, not {share}")
        self.density, self._coding = check_density(density), CODINGS[bits]
        self._rows = chunk if share == "chunk" else 0
        self._shift = chunk.bit_length() - 1 if chunk else _ONE_CHUNK

    def thinned(self, by: int) -> SparseCodec:
        """One that keeps `1 / by` as much, and whose bytes this one opens like its own."""
        thin = copy.copy(self)
        thin.density = self.density / by
        return thin

    def encode(self, values: torch.Tensor, seed: int = 0) -> bytes:
        fused = try_fused(self, values, None, None)
        if fused is not None:
            return fused[0]
        flat = check_encodable(values)
        numel = flat.numel()
        positions, kept = self._select(flat)
        coded = self._coding.encode(kept, positions >> self._shift, self._chunks(numel))
        return _HEADER.pack(numel, len(kept)) + coded + pack_positions(positions, numel)

    def start_fused(
        self, update: torch.Tensor, residual: torch.Tensor | None, decay: float | None
    ) -> Started | None:
        """Where each chunk chooses for itself, and has a codebook."""
        if not 0 < self._rows <= _LONGEST_FUSED or not isinstance(self._coding, Codebooks):
            return None
        from shoal.codec.kernels.launching import Feed
        from shoal.codec.kernels.launching import largest as choose

        keep, last_keep = self._keep(self._rows), self._keep(update.numel() % self._rows)
        return choose(Feed(update, residual, decay), self._rows, keep, last_keep, self._coding.steps)

    def finish_fused(self, arrived: torch.Tensor, numel: int) -> bytes | None:
        from shoal.codec.kernels.launching import chosen_bytes

        assert isinstance(self._coding, Codebooks)
        rows, keep, steps = self._chunks(numel), self._keep(self._rows), self._coding.steps
        parts = [part.numpy() for part in torch.split(arrived, chosen_bytes(rows, keep, steps))]
        counts, books, notes = parts[0].view(np.int32), parts[1].view(np.uint16), parts[2].view(np.uint16)
        if (counts < 0).any():
            return None
        if (counts < keep).any():
            notes = notes.reshape(rows, keep)[np.arange(keep) < counts[:, None]]
        positions = np.repeat(np.arange(rows) * self._rows, counts) + (notes >> 2)
        planes = [(notes & place).astype(np.bool_) for place in (1, 2)[2 - steps :]]
        coded = self._coding.join(books, planes)
        return _HEADER.pack(numel, len(notes)) + coded + pack_positions(positions, numel)

    def open(self, payload: memoryview, numel: int) -> ScatteredSource | None:
        if len(payload) < _HEADER.size or numel < 1:
            return None
        claimed, kept = _HEADER.unpack_from(payload)
        if claimed != numel or kept > self.most_kept(numel):
            return None
        end = _HEADER.size + self._coding.size_bytes(kept, self._chunks(numel))
        if len(payload) < end:
            return None
        values = self._coding.open(payload[_HEADER.size : end], kept, self._chunks(numel))
        positions = unpack_positions(payload[end:], kept, numel)
        if values is None or positions is None:
            return None
        return ScatteredSource(positions, values, numel, self._shift)

    def most_kept(self, numel: int) -> int:
        """How many of so many values are kept, if none of them is zero."""
        return sum((stop - start) // width * self._keep(width) for start, stop, width in self._parts(numel))

    def _select(self, flat: torch.Tensor) -> tuple[Positions, Floats]:
        parts = self._parts(flat.numel())
        found = [largest(flat[start:stop], width, self._keep(width)) for start, stop, width in parts]
        if len(found) == 1:
            return found[0]
        (first, first_kept), (last, last_kept) = found
        return np.concatenate([first, last + parts[1][0]]), np.concatenate([first_kept, last_kept])

    def _keep(self, width: int) -> int:
        return max(1, round(self.density * width))

    def _chunks(self, numel: int) -> int:
        return (numel - 1 >> self._shift) + 1

    def _parts(self, numel: int) -> list[tuple[int, int, int]]:
        """(start, stop, width): ranges and the width of the rows in them, within which values compete. The last
        row may be a short one."""
        width = self._rows or numel
        whole = numel - numel % width
        parts = [(0, whole, width), (whole, numel, numel - whole)]
        return [part for part in parts if part[0] < part[1]]
