"""Codecs that only choose the width of a float: none (float32) and fp16."""

from __future__ import annotations

import torch

from shoal.base.errors import ShoalError
from shoal.codec.base import DenseSource, check_encodable, tensor_bytes, tensor_view


class _Floats(DenseSource):
    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        out.copy_(self._values[start:stop]).mul_(factor)


class FloatCodec:
    """Each value as one IEEE float of `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def encode(self, values: torch.Tensor, seed: int = 0) -> bytes:
        narrow = check_encodable(values).to(self._dtype)
        if not bool(torch.isfinite(narrow).all()):
            raise ShoalError(
                "SH-CODEC-01",
                f"the update has a value beyond what {self._dtype} can hold",
                "use codec none or int8; nothing was published",
            )
        return tensor_bytes(narrow)

    def open(self, payload: memoryview, numel: int) -> _Floats | None:
        if len(payload) != numel * self._dtype.itemsize:
            return None
        values = tensor_view(payload, self._dtype)
        return _Floats(values) if bool(torch.isfinite(values).all()) else None
