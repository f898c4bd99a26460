"""Random-k: values at drawn places, the same places for all nodes of a round, so that none need be sent.

In flow values and the round's seed; out flow the seed, how many values there were, and those at the places it draws.
Invariant: seed and number alone give the places, on every machine: a counter-based generator (Philox) makes 64 bits
for each, and whole numbers do the rest.

The values are cut into as many stretches as are kept, of lengths that differ by one at most, and each gives one.
"""

from __future__ import annotations

import struct

import numpy as np
import torch

from shoal.codec.base import check_encodable, too_large
from shoal.codec.gaps import Positions
from shoal.codec.kept import CODINGS
from shoal.codec.scattered import ScatteredSource, check_density

_HEADER = struct.Struct("<QQ")
_WIDTHS = (16, 32)
_SEEDS = 1 << 64
_BLOCK = 1 << 15


class RandomKCodec:
    """Keeps `density` of the values, at least one. `scaled` multiplies each by the length of its stretch, so that the
    mean over many rounds is the update itself: use that, or error feedback, not both."""

    def __init__(self, density: float = 0.1, bits: int = 16, scaled: bool = False) -> None:
        if bits not in _WIDTHS:
            raise ValueError(f"bits must be one of {', '.join(map(str, _WIDTHS))}, not {bits}")
        self._density, self._coding, self.scaled = check_density(density), CODINGS[bits], scaled

    def encode(self, values: torch.Tensor, seed: int = 0) -> bytes:
        flat = check_encodable(values)
        numel = flat.numel()
        places = _draw(seed % _SEEDS, numel, self._keep(numel))
        kept = flat[torch.from_numpy(places).to(flat.device)].cpu().numpy()
        if self.scaled:
            with np.errstate(over="ignore"):
                kept = kept * np.diff(_ends(numel, len(kept), 0, len(kept))).astype(np.float32)
            if not np.isfinite(kept).all():
                raise too_large("scaled random-k")
        return _HEADER.pack(seed % _SEEDS, numel) + self._coding.encode(kept, places, 1)

    def open(self, payload: memoryview, numel: int) -> ScatteredSource | None:
        keep = self._keep(numel)
        if numel < 1 or len(payload) != _HEADER.size + self._coding.size_bytes(keep, 1):
            return None
        seed, claimed = _HEADER.unpack_from(payload)
        values = self._coding.open(payload[_HEADER.size :], keep, 1)
        if claimed != numel or values is None:
            return None
        return ScatteredSource(_draw(seed, numel, keep), values, numel, 0)

    def _keep(self, numel: int) -> int:
        return max(1, round(self._density * numel))


def _ends(numel: int, count: int, first: int, last: int) -> Positions:
    """Where stretches [first, last) of all `count` begin, and where the last of them ends."""
    numbers = np.arange(first, last + 1)
    return numbers * (numel // count) + numbers * (numel % count) // count


def _draw(seed: int, numel: int, count: int) -> Positions:
    """One place in each stretch, drawn block by block: one stream, whatever the blocks."""
    generator = np.random.Philox(key=np.array([seed, numel], np.uint64))
    places = np.empty(count, np.int64)
    for first in range(0, count, _BLOCK):
        last = min(first + _BLOCK, count)
        ends = _ends(numel, count, first, last)
        drawn = generator.random_raw(last - first) % np.diff(ends).astype(np.uint64)
        places[first:last] = ends[:-1] + drawn.astype(np.int64)
    return places
