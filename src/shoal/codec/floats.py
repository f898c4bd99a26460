"""Codecs that only choose the width of a float: none (float32), fp16 and bf16.

In flow values; out flows each, rounded once to the nearest. Invariant: a value that the narrow type cannot hold is
refused before anything is published. Conversion is elementwise, so devices agree.
"""

from __future__ import annotations

import torch

from shoal.base.errors import ShoalError
from shoal.codec.base import CHUNK, DenseSource, all_finite, check_encodable, join_bytes, tensor_view

_PART = 4 * CHUNK


class _Floats(DenseSource):
    def __init__(self, payload: memoryview, dtype: torch.dtype) -> None:
        self._raw, self._dtype = tensor_view(payload, torch.uint8), dtype

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        out.copy_(self._values(start, stop))
        if factor != 1.0:
            out.mul_(factor)

    def is_finite(self) -> bool:
        """Whether every value is; looked at in parts, as it is decoded."""
        numel = len(self._raw) // self._dtype.itemsize
        parts = ((start, min(start + _PART, numel)) for start in range(0, numel, _PART))
        return all(all_finite(self._values(start, stop)) for start, stop in parts)

    def _values(self, start: int, stop: int) -> torch.Tensor:
        """A copy of the range: a payload may begin at any address, and only single bytes are aligned everywhere."""
        width = self._dtype.itemsize
        return self._raw[start * width : stop * width].clone().view(self._dtype)


class FloatCodec:
    """Each value as one IEEE float of `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def size_bytes(self, numel: int) -> int:
        return numel * self._dtype.itemsize

    def encode(self, values: torch.Tensor, seed: int = 0) -> bytes:
        narrow = check_encodable(values).to(self._dtype)
        if not all_finite(narrow):
            raise ShoalError(
                "SH-CODEC-01",
                f"the update has a value beyond what {self._dtype} can hold",
                "use codec none or int8; nothing was published",
            )
        return join_bytes(narrow)

    def open(self, payload: memoryview, numel: int) -> _Floats | None:
        if len(payload) != self.size_bytes(numel):
            return None
        source = _Floats(payload, self._dtype)
        return source if source.is_finite() else None
