"""Launches kernels, and gives them memory.

In flow flat float32 tensors on one device; out flow the bytes that will travel, still there, and the new residual.
Invariant: a dense payload is laid out as it will be sent, so that it leaves the device in one copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from shoal.codec.kernels.choosing import choose_rows
from shoal.codec.kernels.decoding import add_up
from shoal.codec.kernels.encoding import encode_rows

_TILE = 2048
"""So many values to a program, or a block if that has more."""
THREAD_VALUES = {8: 16, 4: 16, 2: 32, 1: 32}
CHOOSING_VALUES = ADDING_VALUES = 16
"""So many to a thread: more of them are fewer sums across threads, fewer are more threads to wait for memory."""
_MAX_WARPS = 32
_ALIGN_BYTES = 16
_WORDS = {8: torch.int32, 4: torch.int16, 2: torch.uint8, 1: torch.uint8}
"""By bits, what the kernel stores codes as."""
_EXACT = {"enable_fp_fusion": False}
"""A product and a sum round one after the other, as on a CPU."""


@dataclass(frozen=True, slots=True)
class Feed:
    """What is encoded: `update + residual`; and what is left of it, times `decay`, unless that is None."""

    update: torch.Tensor
    residual: torch.Tensor | None
    decay: float | None

    def room(self) -> torch.Tensor | None:
        """Memory for the new residual, if one is wanted."""
        return None if self.decay is None else torch.empty_like(self.update)


def dense(feed: Feed, bits: int, block: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Codebooks and then packed codes, as bytes, and the new residual."""
    update, left, numel = feed.update, feed.room(), feed.update.numel()
    book_bytes, code_bytes = -(-numel // block) * (8 if bits == 2 else 4), -(-numel * bits // 8)
    # Codes begin where a wide word may, and the last of those words may end beyond them.
    pad = -book_bytes % _ALIGN_BYTES
    size = pad + book_bytes + code_bytes
    memory = torch.empty(size + -code_bytes % 4, dtype=torch.uint8, device=update.device)
    tile = max(_TILE, block)
    for first, programs, whole in _launches(numel, tile):
        with _on(update.device):
            encode_rows[(programs,)](
                update,
                update if feed.residual is None else feed.residual,
                memory[pad : pad + book_bytes].view(torch.float32),
                memory[pad + book_bytes :].view(_WORDS[bits]),
                update if left is None else left,
                first,
                numel,
                feed.decay or 0.0,
                BITS=bits,
                BLOCK=block,
                LEVELS=block.bit_length() - 1,
                ROWS=tile // block,
                ADDS=feed.residual is not None,
                LEAVES=left is not None,
                WHOLE=whole,
                num_warps=_warps(tile, THREAD_VALUES[bits]),
                **_EXACT,
            )
    return memory[pad:size], left


def largest(
    feed: Feed, chunk: int, keep: int, last_keep: int, steps: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The `keep` largest values of each chunk, and `last_keep` of one that is short, by `steps` magnitudes: bytes, to
    be split by `chosen_bytes`, and the new residual."""
    update, left, numel = feed.update, feed.room(), feed.update.numel()
    sizes = chosen_bytes(-(-numel // chunk), keep, steps)
    memory = torch.empty(sum(sizes), dtype=torch.uint8, device=update.device)
    counts, books, notes = torch.split(memory, sizes)
    for first, programs, whole in _launches(numel, chunk):
        with _on(update.device):
            choose_rows[(programs,)](
                update,
                update if feed.residual is None else feed.residual,
                counts.view(torch.int32),
                books.view(torch.int16),
                notes.view(torch.int16),
                update if left is None else left,
                first,
                numel,
                keep if whole else last_keep,
                keep,
                feed.decay or 0.0,
                STEPS=steps,
                CHUNK=chunk,
                KEPT_LOG=(keep - 1).bit_length(),
                ADDS=feed.residual is not None,
                LEAVES=left is not None,
                WHOLE=whole,
                num_warps=_warps(chunk, CHOOSING_VALUES),
                **_EXACT,
            )
    return memory, left


def chosen_bytes(rows: int, keep: int, steps: int) -> list[int]:
    """By chunk: how many are kept (int32; -1: not finite), a codebook (uint16), and for each kept value its place times
    four plus its code (uint16; 1: the larger magnitude, 2: negative)."""
    return [4 * rows, 2 * rows * steps, 2 * rows * keep]


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Dense updates on a device, and tables of where they lie."""

    tensors: tuple[torch.Tensor, ...]
    """Owned, so that the addresses stay good."""
    books_of: torch.Tensor
    packed_of: torch.Tensor


def upload(updates: Sequence[tuple[torch.Tensor, torch.Tensor]], device: torch.device) -> Uploaded:
    """Each update's codebooks and packed codes, brought to the device."""
    there = [(books.to(device), packed.to(device)) for books, packed in updates]
    addresses = torch.tensor([[tensor.data_ptr() for tensor in pair] for pair in there], dtype=torch.int64)
    books_of, packed_of = addresses.t().contiguous().to(device).unbind()
    return Uploaded(tuple(tensor for pair in there for tensor in pair), books_of, packed_of)


def add_dense(
    uploaded: Uploaded,
    factors: torch.Tensor,
    start: int,
    out: torch.Tensor,
    *,
    onto: bool,
    bits: int,
    block: int,
) -> None:
    """Values from `start` on of all that is uploaded, each times its factor, in order: into `out`, or onto it."""
    count = out.numel()
    with _on(out.device):
        add_up[(-(-count // _TILE),)](
            uploaded.books_of,
            uploaded.packed_of,
            factors,
            out,
            start,
            count,
            len(factors),
            BITS=bits,
            BLOCK=block,
            TILE=_TILE,
            ADDS=onto,
            num_warps=_warps(_TILE, ADDING_VALUES),
            **_EXACT,
        )


def _launches(numel: int, tile: int) -> Iterator[tuple[int, int, bool]]:
    """(first tile, how many, whether they are whole): those that are need no bounds, and are launched apart."""
    whole = numel // tile
    if whole:
        yield 0, whole, True
    if numel % tile:
        yield whole, 1, False


def _warps(values: int, each: int) -> int:
    return min(max(values // (32 * each), 1), _MAX_WARPS)


def _on(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
