"""Dense codes of one, two or four bits: each chunk of values has a small codebook, each value names a level of it.

In flow values; out flow all codebooks (float32), then all codes, packed into bytes from the lowest bits up. A codebook
of one number is a scale for whole numbers, `(scale * factor) * unit`; one of several numbers is the levels'
magnitudes, `level * factor`. Either way a byte of codes is looked up in a table rather than taken apart.

Invariant: a payload has exactly one meaning (unused bits are zero), and no level is infinite. Encoding divides and
rounds elementwise, takes extremes, and sums by halving or whole numbers, so devices agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from shoal.codec.base import (
    CHUNK,
    Source,
    all_finite,
    check_block,
    check_encodable,
    in_rows,
    join_bytes,
    pairwise_sum,
    scale_blocks,
    slabs,
    tensor_view,
    too_large,
)
from shoal.codec.fused import Started, try_fused
from shoal.codec.packed import PackedSource

Quantise = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""(rows of values, how many of each row count) -> (a codebook a row, codes a row in uint8). Rows end in zeros."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What the codes of so many bits stand for."""

    name: str
    bits: int
    units: tuple[tuple[int, ...], ...]
    """For each number of the codebook, how often it is in the level of each code."""
    quantise: Quantise

    def is_openable(self, books: torch.Tensor) -> bool:
        """Whether no level of any codebook is infinite."""
        most = [float(max(abs(unit) for unit in units)) for units in self.units]
        return all_finite(books) and all_finite(books.abs() * books.new_tensor(most))


# --- from values to codes ----------------------------------------------------------------------------------


def _signs(rows: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A value's sign, and the mean magnitude."""
    mean = pairwise_sum(rows.abs()) / counts
    return mean[:, None], (rows.view(torch.int32) >> 31).to(torch.int8).add_(1).view(torch.uint8)


FIRST_THRESHOLD = 0.79
"""Times (mean square / mean magnitude): the best threshold for normal values is 0.783 of it, for Laplace 0.797."""


def _two_magnitudes(rows: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A small and a large magnitude, each the mean of those on its side of a threshold: one pass of Lloyd's algorithm
    from a start so good that more passes gain a percent at most. In units of the row's largest magnitude."""
    peak = torch.maximum(rows.amax(dim=1), -rows.amin(dim=1)).abs_()
    peak = torch.where(peak > 0, peak, torch.ones_like(peak))
    both = rows.new_empty((2, *rows.shape))
    sizes, other = both.unbind()
    torch.div(rows, peak[:, None], out=sizes).abs_()
    torch.mul(sizes, sizes, out=other)
    total, squares = pairwise_sum(both.view(-1, rows.shape[1])).view(2, -1)
    threshold = squares / torch.where(total > 0, total, torch.ones_like(total)) * FIRST_THRESHOLD
    torch.sub(sizes, threshold[:, None], out=other).clamp_min_(0.0)
    excess = pairwise_sum(other)
    many = other.sign_().sum(dim=1)  # whole numbers, exact in any order
    large = threshold + excess / many.clamp_min(1.0)
    small = (total - excess - many * threshold).clamp_min_(0.0) / (counts - many).clamp_min_(1.0)
    small, large = small.minimum(large) * peak, large * peak
    threshold = small * 0.5 + large * 0.5
    divisor = torch.where(threshold > 0, threshold, torch.ones_like(threshold))
    codes = torch.div(rows, divisor[:, None], out=other).add_(2.0).clamp_(0.0, 3.0).to(torch.uint8)
    return torch.stack((small, large), dim=1), codes


def _sixteen(rows: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sixteen even steps from the extreme value, which is exact, through zero, which is too."""
    high, low = rows.amax(dim=1), rows.amin(dim=1)
    extreme = torch.where(high > -low, high, low)
    step = extreme / extreme.new_tensor(-8.0)
    nonzero = step != 0
    step = torch.where(nonzero, step, torch.zeros_like(step))  # one zero, not two
    divisor = torch.where(nonzero, step, torch.ones_like(step))
    codes = (rows / divisor[:, None]).round_().add_(8.0).clamp_(0.0, 15.0).to(torch.uint8)
    return step[:, None], codes


ONE_BIT = Grid("one-bit codes", 1, ((-1, 1),), _signs)
TWO_BIT = Grid("two-bit codes", 2, ((0, -1, 1, 0), (-1, 0, 0, 1)), _two_magnitudes)
INT4 = Grid("int4 blocks", 4, (tuple(range(-8, 8)),), _sixteen)


# --- packing -----------------------------------------------------------------------------------------------

_WORDS = {1: torch.int64, 2: torch.int32, 4: torch.int16}
"""By bits, the integer as wide as the unpacked codes of one byte."""


def _pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes, one a byte, to packed bytes. A product gathers a word's codes in its highest byte: every partial
    product has bits of its own, so nothing carries."""
    per, word = 8 // bits, _WORDS[bits]
    top = 8 * (per - 1)
    gather = sum(1 << (top - (8 - bits) * place) for place in range(per))
    return ((codes.view(word) * gather) >> top).to(torch.uint8)


def _codes_of_bytes(bits: int) -> torch.Tensor:
    """For every byte, the codes in it."""
    shifts = torch.arange(0, 8, bits)
    return (torch.arange(256)[:, None] >> shifts) & ((1 << bits) - 1)


# --- from codes to values ----------------------------------------------------------------------------------


class _Scaled(PackedSource):
    """Codebooks of one number. `table` holds, for every byte, the units of its codes side by side in one word."""

    def __init__(self, codec: LevelCodec, books: torch.Tensor, packed: torch.Tensor) -> None:
        super().__init__(books, packed, codec.grid.bits, codec.chunk)
        self._table, self._scales = codec.table, books[:, 0]

    def unpack(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        scales = self._scales[start // self.block : -(-stop // self.block)].to(out.device) * factor
        codes = self.packed[start * self.bits // 8 : -(-stop * self.bits // 8)]
        words = self._table.to(out.device).index_select(0, codes.to(out.device, torch.int32))
        out.copy_(words.view(torch.int8)[: stop - start])
        scale_blocks(out, scales, self.block)


class _Tabled(PackedSource):
    """Codebooks of several numbers. `table` holds, for every byte, its codes, to be replaced by a chunk's levels."""

    def __init__(self, codec: LevelCodec, books: torch.Tensor, packed: torch.Tensor) -> None:
        super().__init__(books, packed, codec.grid.bits, codec.chunk)
        self._table, self._offsets = codec.table, codec.offsets
        units = torch.tensor(codec.grid.units, dtype=torch.float32)
        self._levels = (books[:, :, None] * units).sum(dim=1)  # all but one are zero

    def unpack(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        out.copy_(self._values(start, stop, factor, out.device))

    def unpack_onto(
        self, start: int, stop: int, factor: float, out: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        out.add_(self._values(start, stop, factor, out.device))

    def _tables_before(self, count: int, device: torch.device) -> torch.Tensor:
        """For each of so many bytes, how many entries lie before its chunk's table."""
        if count <= len(self._offsets):
            return self._offsets[:count].to(device)
        in_chunk = self.block * self.bits // 8
        return torch.arange(count, dtype=torch.int32, device=device) // in_chunk * 256

    def _values(self, start: int, stop: int, factor: float, device: torch.device) -> torch.Tensor:
        levels = self._levels[start // self.block : -(-stop // self.block)].to(device) * factor
        table = levels.index_select(1, self._table.to(device)).view(-1, 8 // self.bits)
        codes = self.packed[start * self.bits // 8 : -(-stop * self.bits // 8)].to(device)
        # Four floats are moved as one complex number of doubles, which is only copied.
        words = torch.view_as_complex(table.view(torch.float64))
        found = words.index_select(0, codes + self._tables_before(len(codes), device))
        return torch.view_as_real(found).view(torch.float32).view(-1)[: stop - start]


class LevelCodec:
    """Codes of `grid.bits` bits, a codebook for every `chunk` values."""

    def __init__(self, grid: Grid, chunk: int) -> None:
        self.grid, self.chunk = grid, chunk
        codes = _codes_of_bytes(grid.bits)
        if len(grid.units) == 1:
            units = torch.tensor(grid.units[0], dtype=torch.int8)
            self.table = units[codes].view(_WORDS[grid.bits]).view(-1)
        else:
            self.table = codes.view(-1).to(torch.int32)
        in_chunk = chunk * grid.bits // 8
        self.offsets = torch.arange(CHUNK * grid.bits // 8, dtype=torch.int32) // in_chunk * 256

    def size_bytes(self, numel: int) -> int:
        return self._book_bytes(numel) + -(-numel * self.grid.bits // 8)

    def _book_bytes(self, numel: int) -> int:
        return -(-numel // self.chunk) * 4 * len(self.grid.units)

    def encode(self, values: torch.Tensor, seed: int = 0) -> bytes:
        fused = try_fused(self, values, None, None)
        if fused is not None:
            return fused[0]
        flat, chunk, grid = check_encodable(values), self.chunk, self.grid
        every_book, every_code = [], []
        for part in slabs(flat):
            rows = in_rows(part, chunk)
            counts = torch.full_like(rows[:, 0], chunk)
            counts[-1] = part.numel() - chunk * (len(rows) - 1)
            books, codes = grid.quantise(rows, counts)
            codes.view(-1)[part.numel() :] = 0
            every_book.append(books)
            every_code.append(_pack(codes, grid.bits).view(-1)[: -(-part.numel() * grid.bits // 8)])
        books = torch.cat(every_book)
        if not grid.is_openable(books):
            raise too_large(grid.name)
        return join_bytes(books, *every_code)

    def start_fused(
        self, update: torch.Tensor, residual: torch.Tensor | None, decay: float | None
    ) -> Started | None:
        from shoal.codec.kernels.launching import Feed, dense

        return dense(Feed(update, residual, decay), self.grid.bits, self.chunk)

    def finish_fused(self, arrived: torch.Tensor, numel: int) -> bytes | None:
        books = arrived[: self._book_bytes(numel)].view(torch.float32)
        openable = self.grid.is_openable(books.view(-1, len(self.grid.units)))
        return join_bytes(arrived) if openable else None

    def open(self, payload: memoryview, numel: int) -> Source | None:
        if len(payload) != self.size_bytes(numel):
            return None
        book_bytes = self._book_bytes(numel)
        books = tensor_view(payload[:book_bytes], torch.float32).view(-1, len(self.grid.units))
        if not self.grid.is_openable(books):
            return None
        used = numel * self.grid.bits % 8
        if used and payload[-1] >> used:
            return None
        make = _Scaled if len(self.grid.units) == 1 else _Tabled
        return make(self, books, tensor_view(payload[book_bytes:], torch.uint8))


@lru_cache(maxsize=16)
def _made(grid: Grid, chunk: int) -> LevelCodec:
    """Its tables take longer to make than a small update to encode, and nobody changes them."""
    return LevelCodec(grid, chunk)


def one_bit(chunk: int = 4096) -> LevelCodec:
    """Each value's sign, and one magnitude a chunk: 1.01 bits a value. Wants error feedback."""
    return _made(ONE_BIT, check_block("chunk", chunk, least=8))


def two_bit(chunk: int = 4096) -> LevelCodec:
    """Four levels fitted to each chunk: 2.02 bits a value. Retune `chunk` down if a tensor mixes sizes."""
    return _made(TWO_BIT, check_block("chunk", chunk, least=8))


def int4(block: int = 128) -> LevelCodec:
    """Sixteen even levels for each block: 4.25 bits a value."""
    return _made(INT4, check_block("block", block, least=8))
