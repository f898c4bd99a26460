"""What a codec is: tensors to bytes, and bytes from strangers back to tensors, range by range.

In flows one fragment's float32 values; out flow bytes. Invariant: decoding is total and exact. `open` returns
None for bytes that are not whole, of the right size and finite, and what it opens decodes to the same float32
bits on every machine (only conversion, multiplication and addition, one at a time). Encoding is to the same bytes
on every device too, by the same means: elementwise operations, extremes (which have no order), sums by halving
or of whole numbers. Where a codec's encoding is not, it says so.

To add a codec: one file with a class like those here, and one line in `codec/__init__.py`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Protocol

import torch

from shoal.base.errors import ShoalError

# torch warns that a tensor over read-only bytes could be written to; nothing here writes to one.
warnings.filterwarnings("ignore", message="The given buffer is not writable")

CHUNK = 1 << 15
"""Values are decoded and folded in ranges that begin at multiples of this; a codec's blocks divide it. It is
the size up to which torch runs an elementwise operation in one thread: the fold has threads of its own."""

_SLAB_CPU, _SLAB_DEVICE = 16 * CHUNK, 1024 * CHUNK
"""How many values are encoded at once. What is encoded does not depend on it."""
_RANGE_CPU = 4 * CHUNK
"""How many are decoded at once: a sixth less time for error feedback than with one chunk."""


class Source(Protocol):
    """An opened update of one fragment. Every range's `start` is a multiple of `CHUNK`, and it is at most one long,
    or as long as the source's `longest` says; ranges are asked for from several threads at once."""

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        """Write values [start, stop) times `factor`, a float32 number, into `out`, float32 on any device."""

    def accumulate(
        self, start: int, stop: int, factor: float, out: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        """Add what `decode` would write to `out`, to the same bits; `scratch` is as long, and overwritten."""

    def sent(self, start: int, stop: int, out: torch.Tensor) -> None:
        """Write 1 where a value was sent, 0 where the codec left it out."""


class DenseSource:
    """A source that sends every value: only `decode` is left to write, and it takes longer ranges too."""

    longest = 512 * CHUNK

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        raise NotImplementedError

    def accumulate(
        self, start: int, stop: int, factor: float, out: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        self.decode(start, stop, factor, scratch)
        out.add_(scratch)

    def sent(self, start: int, stop: int, out: torch.Tensor) -> None:
        out.fill_(1.0)


class Codec(Protocol):
    def encode(self, values: torch.Tensor, seed: int = 0) -> bytes:
        """Encode a flat float32 tensor on any device, to the same bytes whichever it is. `seed` is the same for all
        nodes of a round, for codecs that draw. Raises SH-CODEC-01 for anything that is not finite."""

    def open(self, payload: memoryview, numel: int) -> Source | None:
        """The values in hostile bytes, or None if they are not `numel` finite values of this codec."""


class SizedCodec(Codec, Protocol):
    """A codec whose size does not depend on the values."""

    def size_bytes(self, numel: int) -> int:
        """Exactly how many bytes so many values take."""


def check_encodable(values: torch.Tensor) -> torch.Tensor:
    """The values as a flat float32 tensor on the device where they are. Raises SH-CODEC-01 if they cannot be
    published."""
    if values.numel() == 0:
        raise ShoalError("SH-CODEC-01", "the tensor to encode is empty", "check the model's fragments")
    flat = values.detach().reshape(-1).to(torch.float32).contiguous()
    if not all_finite(flat):
        raise ShoalError(
            "SH-CODEC-01",
            "the update has a value that is NaN or infinite",
            "lower the learning rate or clip gradients; nothing was published",
        )
    return flat


def too_large(what: str) -> ShoalError:
    """The refusal of finite values that would not be finite, or not openable, once encoded."""
    return ShoalError(
        "SH-CODEC-01",
        f"the update has a value too large for {what}",
        "lower the learning rate or clip gradients; nothing was published",
    )


def all_finite(values: torch.Tensor) -> bool:
    """No NaN, no infinity. The extremes tell, in one pass: NaN is above and below everything."""
    if not values.numel():
        return True
    low, high = torch.aminmax(values)
    if values.device.type == "cpu":  # Two numbers are quicker than four operations on tensors.
        return math.isfinite(low.item()) and math.isfinite(high.item())
    return bool(low - low == high - high)  # Of anything that is not finite, that is NaN.


def check_block(name: str, block: int, least: int = 1) -> int:
    """A block length that divides `CHUNK`. Raises ValueError."""
    if not (least <= block <= CHUNK) or CHUNK % block:
        raise ValueError(f"{name} must be a power of two from {least} up to {CHUNK}, not {block}")
    return block


def slabs(flat: torch.Tensor) -> Iterator[torch.Tensor]:
    """The values in ranges that begin at multiples of `CHUNK`: on the CPU as much as its cache holds."""
    size = _SLAB_CPU if flat.device.type == "cpu" else _SLAB_DEVICE
    for start in range(0, flat.numel(), size):
        yield flat[start : start + size]


def in_rows(flat: torch.Tensor, width: int) -> torch.Tensor:
    """The values as rows of `width`, the last one filled up with zeros; no copy where none is needed."""
    missing = -flat.numel() % width
    return (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, width)


def pairwise_sum(rows: torch.Tensor) -> torch.Tensor:
    """Each row's sum, by halving: the same additions everywhere. Rows are a power of two long."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows[:, 0]


def scale_blocks(out: torch.Tensor, scales: torch.Tensor, block: int) -> None:
    """Multiply each block of `out` by its scale; the last block may be short."""
    whole = out.numel() // block
    if whole:
        out[: whole * block].view(-1, block).mul_(scales[:whole, None])
    if whole * block < out.numel():
        out[whole * block :].mul_(scales[whole])


def longest_of(*sources: object) -> int:
    """How long a range all of these take."""
    return min(int(getattr(source, "longest", CHUNK)) for source in sources)


def range_on(device: torch.device, longest: int) -> int:
    """How long a range is best, of at most this."""
    return min(longest, _RANGE_CPU) if device.type == "cpu" else longest


def ranges(source: Source, numel: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """(start, stop) of all values: ranges for a CPU's cache, or as long as the source takes, so that a device is not
    kept waiting for its orders."""
    step = range_on(device, longest_of(source))
    for start in range(0, numel, step):
        yield start, min(start + step, numel)


def decode_whole(source: Source, numel: int) -> torch.Tensor:
    """Every value, in the CPU's memory."""
    out = torch.empty(numel)
    for start, stop in ranges(source, numel, out.device):
        source.decode(start, stop, 1.0, out[start:stop])
    return out


def join_bytes(*tensors: torch.Tensor) -> bytes:
    """The tensors' memory as bytes, from whichever device, copied once."""
    return b"".join(tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy().data for tensor in tensors)


def tensor_view(payload: memoryview, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of foreign bytes, which is only read. Bytes are viewed in place, wider values copied: a payload
    may begin at any address, and only single bytes are aligned everywhere."""
    if not len(payload):
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(payload if dtype.itemsize == 1 else bytearray(payload), dtype=dtype)
