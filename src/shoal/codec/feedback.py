"""Error feedback: what a codec loses is remembered, and added to the next update.

In flow an update and the residual so far; out flow bytes and the new residual. Invariant: with decay 1, decoded value
plus new residual equals update plus old residual, up to one rounding; nothing is lost, only late. A decay below 1
forgets that share of the residual every time, for codecs whose leftovers grow stale before they are sent.
"""

from __future__ import annotations

import torch

from shoal.codec.base import Codec, Source, decode_whole, ranges
from shoal.codec.fused import try_fused


def decode_all(codec: Codec, payload: bytes, numel: int) -> torch.Tensor:
    """Every value of bytes this process has just encoded itself."""
    return decode_whole(_own(codec, payload, numel), numel)


def encode_with_feedback(
    codec: Codec,
    update: torch.Tensor,
    residual: torch.Tensor | None,
    seed: int = 0,
    decay: float = 1.0,
    *,
    spent: bool = False,
) -> tuple[bytes, torch.Tensor]:
    """Encode `update + residual`, both flat; the bytes, and `decay` times what they leave out. Where nobody needs the
    update afterwards, it is `spent`: its memory is used again."""
    fused = try_fused(codec, update, residual, decay)
    if fused is not None and fused[1] is not None:
        return fused[0], fused[1]
    wanted = update if spent else update.clone()
    if residual is not None:
        wanted += residual
    payload = codec.encode(wanted, seed)
    source, scratch = _own(codec, payload, wanted.numel()), wanted.new_empty(0)
    for start, stop in ranges(source, wanted.numel(), wanted.device):
        scratch = scratch.resize_(stop - start)
        source.decode(start, stop, 1.0, scratch)
        here = wanted[start:stop].sub_(scratch)
        if decay != 1.0:
            here.mul_(decay)
    return payload, wanted


def _own(codec: Codec, payload: bytes, numel: int) -> Source:
    source = codec.open(memoryview(payload), numel)
    if source is None:
        raise AssertionError("a codec could not open its own bytes")
    return source
