"""Whether kernels give the right bytes on a device: each kind once, on values that are hard to get right.

In flows a device; out flows yes or no. Invariant: yes means that every kernel compiled, ran, and agreed with the CPU.
"""

from __future__ import annotations

import torch

from shoal.codec.base import CHUNK


def passes(device: torch.device) -> bool:
    from shoal.codec import CODECS
    from shoal.codec.feedback import encode_with_feedback
    from shoal.codec.fused import FusedCodec, encode_fused

    update, residual = _values(1), _values(2)
    for kind in ("int8", "int4", "two-bit", "one-bit", "chunked-top-k"):
        codec = CODECS[kind]()
        expected = encode_with_feedback(codec, update, residual, 0, 0.9)
        if not isinstance(codec, FusedCodec):
            return False
        found = encode_fused(codec, update.to(device), residual.to(device), 0.9)
        if found is None or found[1] is None or found[0] != expected[0]:
            return False
        if not torch.equal(found[1].cpu().view(torch.int32), expected[1].view(torch.int32)):
            return False
    return True


def _values(seed: int) -> torch.Tensor:
    """Of all sizes, from subnormal ones up, with zeros and equal ones."""
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(CHUNK + 4099, generator=random)
    values[:4096] *= 1e-42
    values[4096:8192] = values[4096:8192].round()
    return values
