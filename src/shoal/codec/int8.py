"""Block int8: each block of values as one float32 scale and one signed byte a value (4x fewer bytes)."""

from __future__ import annotations

import torch

from shoal.base.errors import ShoalError
from shoal.codec.base import CHUNK, DenseSource, check_encodable, tensor_bytes, tensor_view


class _Blocks(DenseSource):
    def __init__(self, scales: torch.Tensor, codes: torch.Tensor, block: int) -> None:
        self._scales, self._codes, self._block = scales, codes, block

    def decode(self, start: int, stop: int, factor: float, out: torch.Tensor) -> None:
        block = self._block
        scales = self._scales[start // block : -(-stop // block)].to(out.device) * factor
        out.copy_(self._codes[start:stop])
        whole = (stop - start) // block * block
        if whole:
            out[:whole].view(-1, block).mul_(scales[: whole // block, None])
        if whole < stop - start:
            out[whole:].mul_(scales[-1])


class Int8Codec:
    """`scale = max|x| / 127` for each block. Retune `block` down if a tensor mixes very different sizes."""

    def __init__(self, block: int = 256) -> None:
        if not (1 <= block <= CHUNK) or CHUNK % block:
            raise ValueError(f"block must be a power of two up to {CHUNK}, not {block}")
        self._block = block

    def encode(self, values: torch.Tensor, seed: int = 0) -> bytes:
        flat = check_encodable(values)
        blocks = -(-flat.numel() // self._block)
        padded = torch.nn.functional.pad(flat, (0, blocks * self._block - flat.numel())).view(blocks, -1)
        scales = padded.abs().amax(dim=1) / 127
        if not bool(torch.isfinite(scales * 128).all()):  # what `open` refuses must not be published
            raise ShoalError(
                "SH-CODEC-01",
                "the update has a value too large for int8 blocks",
                "lower the learning rate or clip gradients; nothing was published",
            )
        # A block whose scale underflows to zero decodes to zero; dividing by one keeps the codes zero too.
        safe = torch.where(scales > 0, scales, torch.ones_like(scales))
        codes = (padded / safe[:, None]).round_().clamp_(-127, 127).to(torch.int8)
        return tensor_bytes(scales) + tensor_bytes(codes.view(-1)[: flat.numel()])

    def open(self, payload: memoryview, numel: int) -> _Blocks | None:
        scale_bytes = -(-numel // self._block) * 4
        if len(payload) != scale_bytes + numel:
            return None
        scales = tensor_view(payload[:scale_bytes], torch.float32)
        # 128 x the scale must be finite too, or a block could decode to infinity.
        if not bool(torch.isfinite(scales * 128).all()):
            return None
        return _Blocks(scales, tensor_view(payload[scale_bytes:], torch.int8), self._block)
