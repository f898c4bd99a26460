"""Inner products of long updates from short sketches of them.

In flow opened updates and a seed; out flow inner products, those of a fragment of few chunks exact. A sketch is the sum
of an update's chunks with signs drawn from the seed, one for each chunk of a group, then one for each value of the
group's sum: one chunk long, with the update's own length on average, and within a few hundredths of it. It costs what
a mean costs, where exact products of sixteen updates cost twelve times that.

Invariant: whoever chose an update could not know the signs, since the seed is a hash of all updates; sums are taken in
a fixed order, in so many lanes that no number of threads changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import blake3
import numpy as np
import torch

from shoal.aggregate.exact import gram
from shoal.codec.base import CHUNK, DenseSource, Source

EXACT_CHUNKS = 32
"""Fragments of so many chunks are compared as they are."""
LANES = 8
GROUP = 4
"""Chunks that are added up before their values get signs of their own. An update that is the same in all of them may
seem up to twice as near as it is where there are but a few groups; more a group would save little."""
_SHRINK = 2.0**-40
"""Sketches are this much smaller than updates, so that no sum of finite float32 values overflows."""


class Vector(DenseSource):
    """Values in memory, as a source."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        torch.mul(self._values[start:stop], factor, out=out)


def inner_products(
    sources: Sequence[Source], numel: int, device: torch.device, seed: str | None
) -> list[list[float]]:
    """Of every source with every other. Without a seed they are exact, whatever that costs."""
    if seed is None or numel <= EXACT_CHUNKS * CHUNK:
        return gram(sources, numel, device)
    short = sketches(sources, numel, device, seed)
    back = 1 / (_SHRINK * _SHRINK)
    return [[value * back for value in row] for row in gram([Vector(row) for row in short], CHUNK, device)]


class _Part:
    """A chunk of a group, and the buffers cut to its length: once for all sources, since cutting takes time too."""

    def __init__(
        self, start: int, length: int, factor: float, total: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        self.start, self.stop, self.factor = start, start + length, factor
        self.short = length < CHUNK
        self.out, self.scratch = total[:length], scratch[:length]


def sketches(sources: Sequence[Source], numel: int, device: torch.device, seed: str) -> torch.Tensor:
    """One row for each source, `CHUNK` long."""
    groups = range(0, numel, GROUP * CHUNK)
    lanes = torch.zeros(LANES, len(sources), CHUNK, device=device)

    def fill(lane: int) -> None:
        total, scratch = torch.empty(2, CHUNK, device=device)
        for first in groups[lane::LANES]:
            signs, chunk_signs = _signs(seed, first, device)
            parts = [
                _Part(start, min(CHUNK, numel - start), _SHRINK * sign, total, scratch)
                for start, sign in zip(range(first, numel, CHUNK), chunk_signs, strict=False)
            ]
            for source, row in zip(sources, lanes[lane], strict=True):
                if parts[0].short:
                    total.zero_()
                source.decode(parts[0].start, parts[0].stop, parts[0].factor, parts[0].out)
                for part in parts[1:]:
                    source.accumulate(part.start, part.stop, part.factor, part.out, part.scratch)
                row.add_(total.mul_(signs))

    threads = min(torch.get_num_threads(), LANES) if device.type == "cpu" else 1
    if threads <= 1:
        list(map(fill, range(LANES)))
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="sketch") as pool:
            list(pool.map(fill, range(LANES)))
    whole = lanes[0]
    for lane in lanes[1:]:
        whole.add_(lane)
    return whole


def _signs(seed: str, first: int, device: torch.device) -> tuple[torch.Tensor, list[float]]:
    """1 or -1 for each value of the sum of a group, which begins here, and for each of its chunks."""
    drawn = blake3.blake3(f"shoal/sketch/{seed}/{first}".encode()).digest(length=CHUNK // 8 + GROUP)
    bits = torch.from_numpy(np.unpackbits(np.frombuffer(drawn[GROUP:], np.uint8)))
    signs = bits.to(device, torch.float32).mul_(2.0).sub_(1.0)
    return signs, [1.0 if byte & 1 else -1.0 for byte in drawn[:GROUP]]
