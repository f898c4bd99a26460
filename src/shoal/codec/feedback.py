"""Error feedback: what a codec loses is remembered, and added to the next update.

In flow an update and the residual so far; out flow bytes and the new residual. Invariant: decoded value plus
new residual equals update plus old residual, up to one rounding; nothing is lost, only late.
"""

from __future__ import annotations

import torch

from shoal.codec.base import CHUNK, Codec


def decode_all(codec: Codec, payload: bytes, numel: int) -> torch.Tensor:
    """Every value of bytes this process has just encoded itself."""
    source = codec.open(memoryview(payload), numel)
    if source is None:
        raise AssertionError("a codec could not open its own bytes")
    out = torch.empty(numel)
    for start in range(0, numel, CHUNK):
        stop = min(start + CHUNK, numel)
        source.decode(start, stop, 1.0, out[start:stop])
    return out


def encode_with_feedback(
    codec: Codec, update: torch.Tensor, residual: torch.Tensor | None, seed: int = 0
) -> tuple[bytes, torch.Tensor]:
    """Encode `update + residual`; the bytes and what they leave out."""
    wanted = update if residual is None else update + residual
    payload = codec.encode(wanted, seed)
    return payload, wanted - decode_all(codec, payload, wanted.numel())
