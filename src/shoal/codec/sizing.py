"""How many bytes a codec makes of a value.

In flows a codec; out flows a number. Invariant: the same on every machine of one kind of library, and never asked of a
run's own values: it is for comparing codecs before anything was sent.
"""

from __future__ import annotations

import torch

from shoal.codec.base import CHUNK, Codec

_VALUES = 2 * CHUNK


def bytes_per_value(codec: Codec) -> float:
    """By what the codec says, or by what it makes of noise where its size depends on the values."""
    size_of = getattr(codec, "size_bytes", None)
    if size_of is not None:
        return float(size_of(_VALUES)) / _VALUES
    noise = torch.randn(_VALUES, generator=torch.Generator().manual_seed(0))
    return len(codec.encode(noise)) / _VALUES
