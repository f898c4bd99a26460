"""Norms and inner products of updates, to the same bits on every machine.

In flow opened updates; out flow float64 sums. Invariant: a product of two float32 values is exact in float64, and
the products are added by one fixed tree: halves of a chunk onto one another down to one number, then the chunks'
numbers likewise. Neither threads nor devices change a bit, and no finite float32 values can overflow it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shoal.aggregate.base import Combine
from shoal.aggregate.chunks import Spans, in_chunks
from shoal.codec.base import CHUNK, Source, longest_of

LEAF = 512
"""A chunk's products are added down to this many alone, and from there together with its other sums."""


def square_root(values: torch.Tensor) -> torch.Tensor:
    """Each value's root, in place, rounded as IEEE wants. On a CPU torch asks MKL, whose roots are often a bit off,
    and not by the same on all processors; numpy and accelerators take the hardware's, which are exact."""
    if values.device.type == "cpu":
        np.sqrt(values.numpy(), out=values.numpy())
        return values
    return values.sqrt_()


class Halving:
    """Adds the upper half of a buffer's last axis, a power of two long, onto the lower until `until` are left.
    The views are made once, for a buffer that is filled again and again."""

    def __init__(self, buffer: torch.Tensor, until: int = 1) -> None:
        self.left = buffer[..., :until]
        self._halves = []
        length = buffer.shape[-1]
        while length > until:
            length //= 2
            self._halves.append((buffer[..., :length], buffer[..., length : 2 * length]))

    def __call__(self) -> torch.Tensor:
        for low, high in self._halves:
            low.add_(high)
        return self.left


def norms(sources: Sequence[Source], numel: int, device: torch.device) -> list[float]:
    """The Euclidean length of each source's values."""

    def squares(chunk: Chunk) -> None:
        values = chunk.buffers[0]
        for row, source in enumerate(sources):
            source.decode(chunk.start, chunk.stop, 1.0, values)
            chunk.add_product(row, values, values)

    return [
        math.sqrt(total)
        for total in chunk_sums(numel, device, len(sources), 1, squares, longest_of(*sources))
    ]


def norm_of(combine: Combine, numel: int, device: torch.device) -> float:
    """The Euclidean length of what an aggregate would be."""

    def squares(chunk: Chunk) -> None:
        out, scratch = chunk.buffers
        combine(chunk.start, chunk.stop, out, scratch)
        chunk.add_product(0, out, out)

    return math.sqrt(chunk_sums(numel, device, 1, 2, squares)[0])


def gram(sources: Sequence[Source], numel: int, device: torch.device) -> list[list[float]]:
    """The inner product of every source with every other; a chunk of each is held at a time."""
    pairs = [(i, j) for i in range(len(sources)) for j in range(i + 1)]

    def products(chunk: Chunk) -> None:
        for source, values in zip(sources, chunk.buffers, strict=True):
            source.decode(chunk.start, chunk.stop, 1.0, values)
        for row, (i, j) in enumerate(pairs):
            chunk.add_product(row, chunk.buffers[i], chunk.buffers[j])

    found = dict(zip(pairs, chunk_sums(numel, device, len(pairs), len(sources), products), strict=True))
    return [[found[max(i, j), min(i, j)] for j in range(len(sources))] for i in range(len(sources))]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Chunks at work: their range, float32 buffers of its length to decode into, and where sums go."""

    start: int
    stop: int
    buffers: list[torch.Tensor]
    add_product: Callable[[int, torch.Tensor, torch.Tensor], None]
    """(row, left, right): the chunks' inner products of two buffers are part of that sum."""


def chunk_sums(
    numel: int,
    device: torch.device,
    sums: int,
    buffers: int,
    work: Callable[[Chunk], None],
    longest: int = CHUNK,
) -> list[float]:
    """As many sums over the fragment as asked for; `work` is called for every range, of at most so many values, and
    adds to all of them."""
    chunks = -(-numel // CHUNK)
    parts = torch.zeros(sums, _power_of_two(chunks), dtype=torch.float64, device=device)

    def some(spans: Spans) -> None:
        length = -(-(spans[0][1] - spans[0][0]) // CHUNK)
        room = _Room(sums, length, device)
        values = torch.empty(buffers, length * CHUNK, device=device)
        for start, stop in spans:
            work(Chunk(start, stop, list(values[:, : stop - start]), room.add_product))
            here = parts[:, start // CHUNK : -(-stop // CHUNK)]
            here.copy_(room.total()[:, : here.shape[1]])

    in_chunks(numel, device, some, longest)
    found: list[float] = Halving(parts)()[:, 0].tolist()
    return found


class BlockProducts:
    """Inner products block by block, within one chunk of the given length; the last block may be short."""

    def __init__(self, length: int, block: int, device: torch.device) -> None:
        blocks = -(-length // block)
        self._products, self._other = torch.zeros(2, blocks * block, dtype=torch.float64, device=device)
        self._length = length
        self._add = Halving(self._products.view(blocks, block))

    def __call__(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        products, other = self._products[: self._length], self._other[: self._length]
        products.copy_(left)
        products.mul_(products if right is left else other.copy_(right))
        self._products[self._length :].zero_()
        return self._add()[:, 0].clone()


class _Room:
    """One thread's buffers: products of so many chunks, and what is left of each sum's."""

    def __init__(self, sums: int, chunks: int, device: torch.device) -> None:
        self._products = torch.empty(chunks * CHUNK, dtype=torch.float64, device=device)
        self._other = torch.empty(chunks * CHUNK, dtype=torch.float64, device=device)
        self._leaves = torch.empty(sums, chunks, LEAF, dtype=torch.float64, device=device)
        self._rows = list(self._leaves)
        self._to_leaf = Halving(self._products.view(chunks, CHUNK), LEAF)
        self._to_one = Halving(self._leaves)

    def add_product(self, row: int, left: torch.Tensor, right: torch.Tensor) -> None:
        length = left.numel()
        products = self._products if length == len(self._products) else self._products[:length]
        products.copy_(left)
        if right is left:
            products.mul_(products)
        else:
            products.mul_(self._other[:length].copy_(right))
        self._products[length:].zero_()
        self._rows[row].copy_(self._to_leaf())

    def total(self) -> torch.Tensor:
        return self._to_one()[..., 0]


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()
