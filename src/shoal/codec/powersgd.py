"""A fragment as a matrix of low rank: two thin factors instead of all values.

In flow values, laid out row by row in `columns` columns (the last row filled up with zeros); out flow a float32 scale
for each rank, then a factor with a row for each row, then one with a row for each column, in fp16 and never
above 1. A value is the sum over the ranks, in order, of `(scale * left) * right`: multiplied, then added.

Invariant: decoding is exact everywhere, as for every codec. Encoding is not: it takes matrix products and a QR
decomposition of torch's, and is the same bytes only on the same machine with the same seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shoal.codec.base import (
    CHUNK,
    DenseSource,
    all_finite,
    check_encodable,
    in_rows,
    join_bytes,
    tensor_view,
    too_large,
)

_POWER_ITERATIONS = 2


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: int
    columns: int
    rank: int

    def size_bytes(self) -> int:
        return 4 * self.rank + 2 * self.rank * (self.rows + self.columns)


class _LowRank(DenseSource):
    def __init__(self, scales: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
        self._scales, self._left, self._right = scales, left, right

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        columns = self._right.shape[0]
        first, last = start // columns, -(-stop // columns)
        left = self._left[first:last].to(out.device, torch.float32) * self._scales.to(out.device) * factor
        right = self._right.to(out.device, torch.float32)
        total = left[:, :1] * right[:, 0]
        for rank in range(1, right.shape[1]):
            total.add_(left[:, rank : rank + 1] * right[:, rank])
        out.copy_(total.view(-1)[start - first * columns :][: stop - start])


class PowerSgdCodec:
    """Raise `rank` for a finer update; `columns` is best the width of the model's largest matrices."""

    def __init__(self, rank: int = 4, columns: int = 1024) -> None:
        if not 1 <= rank <= 64:
            raise ValueError(f"rank must be from 1 to 64, not {rank}")
        if not 1 <= columns <= CHUNK:
            raise ValueError(f"columns must be from 1 to {CHUNK}, not {columns}")
        self._rank, self._columns = rank, columns

    def size_bytes(self, numel: int) -> int:
        return self._shape(numel).size_bytes()

    def _shape(self, numel: int) -> _Shape:
        columns = min(self._columns, numel)
        rows = -(-numel // columns)
        return _Shape(rows, columns, min(self._rank, rows, columns))

    def encode(self, values: torch.Tensor, seed: int = 0) -> bytes:
        flat = check_encodable(values)
        shape = self._shape(flat.numel())
        largest = float(torch.aminmax(flat.abs()).max)
        matrix = in_rows(flat, shape.columns) / flat.new_tensor(largest or 1.0)
        left, right = _factors(matrix, shape.rank, seed)
        scales = right.abs().amax(dim=0)
        right = right / torch.where(scales > 0, scales, torch.ones_like(scales))
        scales = scales * largest
        if not _is_bounded(scales):
            raise too_large("low-rank factors")
        halves = [factor.clamp(-1.0, 1.0).to(torch.float16) for factor in (left, right)]
        return join_bytes(scales, *halves)

    def open(self, payload: memoryview, numel: int) -> _LowRank | None:
        if numel < 1 or len(payload) != self.size_bytes(numel):
            return None
        shape = self._shape(numel)
        scales = tensor_view(payload[: 4 * shape.rank], torch.float32)
        factors = tensor_view(payload[4 * shape.rank :], torch.float16)
        if not _is_bounded(scales) or not bool(factors.abs().max() <= 1.0):  # false for NaN too
            return None
        left, right = factors.view(-1, shape.rank).tensor_split((shape.rows,))
        return _LowRank(scales, left, right)


def _factors(matrix: torch.Tensor, rank: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Orthonormal columns, and what to multiply them by to come near the matrix."""
    random = torch.Generator().manual_seed(seed)
    right = torch.randn(matrix.shape[1], rank, generator=random).to(matrix.device)
    left = right
    for _ in range(_POWER_ITERATIONS):
        left = torch.linalg.qr(matrix @ right).Q
        right = matrix.t() @ left
    return left, right


def _is_bounded(scales: torch.Tensor) -> bool:
    """No value can be infinite, nor a sum on the way to one: factors are at most 1."""
    return all_finite(scales.abs() * float(2 * len(scales)))
