"""What a codec is: tensors to bytes, and bytes from strangers back to tensors, range by range.

In flows one fragment's float32 values; out flow bytes. Invariant: decoding is total and exact. `open` returns
None for bytes that are not whole, of the right size and finite, and what it opens decodes to the same float32
bits on every machine (only conversion, multiplication and addition, one at a time).

To add a codec: one file with a class like those here, and one line in `codec/__init__.py`.
"""

from __future__ import annotations

import warnings
from typing import Protocol

import torch

from shoal.base.errors import ShoalError

# torch warns that a tensor over read-only bytes could be written to; nothing here writes to one.
warnings.filterwarnings("ignore", message="The given buffer is not writable")

CHUNK = 1 << 15
"""Values are decoded and folded in ranges that begin at multiples of this; a codec's blocks divide it. It is
the size up to which torch runs an elementwise operation in one thread: the fold has threads of its own."""


class Source(Protocol):
    """An opened update of one fragment. Every range's `start` is a multiple of `CHUNK`, and it is at most one long;
    ranges are asked for from several threads at once."""

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        """Write values [start, stop) times `factor`, a float32 number, into `out`, float32 on any device."""

    def accumulate(
        self, start: int, stop: int, factor: float, out: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        """Add what `decode` would write to `out`, to the same bits; `scratch` is as long, and overwritten."""

    def sent(self, start: int, stop: int, out: torch.Tensor) -> None:
        """Write 1 where a value was sent, 0 where the codec left it out."""


class DenseSource:
    """A source that sends every value: only `decode` is left to write."""

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


def check_encodable(values: torch.Tensor) -> torch.Tensor:
    """The values as a flat float32 CPU tensor. Raises SH-CODEC-01 if they cannot be published."""
    if values.numel() == 0:
        raise ShoalError("SH-CODEC-01", "the tensor to encode is empty", "check the model's fragments")
    flat = values.detach().reshape(-1).to("cpu", torch.float32).contiguous()
    if not bool(torch.isfinite(flat).all()):
        raise ShoalError(
            "SH-CODEC-01",
            "the update has a value that is NaN or infinite",
            "lower the learning rate or clip gradients; nothing was published",
        )
    return flat


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The tensor's memory as bytes."""
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def tensor_view(payload: memoryview, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of foreign bytes, which is only read. Bytes are viewed in place, wider values copied: a payload
    may begin at any address, and only single bytes are aligned everywhere."""
    if not len(payload):
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(payload if dtype.itemsize == 1 else bytearray(payload), dtype=dtype)
