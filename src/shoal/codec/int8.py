"""Block int8: each block of values as one float32 scale and one signed byte a value (4x fewer bytes).

In flow values; out flow all scales, then all bytes. Invariant: decoded is within half a step (`max|x| / 127`) of what
was encoded. Encoding takes a maximum for each block, then divides and rounds elementwise, so devices agree.
"""

from __future__ import annotations

import torch

from shoal.codec.base import (
    all_finite,
    check_block,
    check_encodable,
    in_rows,
    join_bytes,
    scale_blocks,
    slabs,
    tensor_view,
    too_large,
)
from shoal.codec.fused import Started, try_fused
from shoal.codec.packed import PackedSource


class _Blocks(PackedSource):
    def unpack(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        scales = self.books[start // self.block : -(-stop // self.block)].to(out.device) * factor
        out.copy_(self.packed[start:stop].view(torch.int8))
        scale_blocks(out, scales, self.block)


class Int8Codec:
    """`scale = max|x| / 127` for each block. Retune `block` down if a tensor mixes very different sizes."""

    def __init__(self, block: int = 256) -> None:
        self._block = check_block("block", block)

    def size_bytes(self, numel: int) -> int:
        return -(-numel // self._block) * 4 + numel

    def encode(self, values: torch.Tensor, seed: int = 0) -> bytes:
        fused = try_fused(self, values, None, None)
        if fused is not None:
            return fused[0]
        flat = check_encodable(values)
        # A tensor, not a number: devices multiply by a number's reciprocal, which rounds twice.
        steps = flat.new_tensor(127.0)
        every_scale, every_code = [], []
        for part in slabs(flat):
            rows = in_rows(part, self._block)
            scales = torch.maximum(rows.amax(dim=1), -rows.amin(dim=1)).abs_() / steps  # never minus zero
            # A block whose scale underflows to zero decodes to zero; dividing by one keeps the codes zero too.
            safe = torch.where(scales > 0, scales, torch.ones_like(scales))
            codes = (rows / safe[:, None]).round_().clamp_(-127, 127).to(torch.int8)
            every_scale.append(scales)
            every_code.append(codes.view(-1)[: part.numel()])
        scales = torch.cat(every_scale)
        if not _openable(scales):  # what `open` refuses must not be published
            raise too_large("int8 blocks")
        return join_bytes(scales, *every_code)

    def start_fused(
        self, update: torch.Tensor, residual: torch.Tensor | None, decay: float | None
    ) -> Started | None:
        from shoal.codec.kernels.launching import Feed, dense

        return dense(Feed(update, residual, decay), 8, self._block)

    def finish_fused(self, arrived: torch.Tensor, numel: int) -> bytes | None:
        scales = arrived[: len(arrived) - numel].view(torch.float32)
        return join_bytes(arrived) if _openable(scales) else None

    def open(self, payload: memoryview, numel: int) -> _Blocks | None:
        if len(payload) != self.size_bytes(numel):
            return None
        scales = tensor_view(payload[: len(payload) - numel], torch.float32)
        if not _openable(scales):
            return None
        return _Blocks(scales, tensor_view(payload[len(payload) - numel :], torch.uint8), 8, self._block)


def _openable(scales: torch.Tensor) -> bool:
    """128 x the scale must be finite too, or a block could decode to infinity."""
    return all_finite(scales * 128)
