"""First values of a model's parameters.

In flow the run's seed and a parameter's name; out flow its values. Invariant: they are the same bits on every
machine and library version: the randomness is counted integers, and one rounding makes the float.
"""

from __future__ import annotations

import math

import blake3
import numpy as np
import torch
from torch import nn

# The sum of four uniform 16-bit integers: bell-shaped, within 3.5 standard deviations, and exact.
_DRAWS = 4
_MEAN = _DRAWS * 65535 / 2
_DEVIATION = math.sqrt(_DRAWS * (65536**2 - 1) / 12)


def fill_normal(parameter: nn.Parameter, seed: int, name: str, deviation: float) -> None:
    """Fill with bell-shaped noise of this standard deviation and mean zero; a parameter without memory stays so."""
    if parameter.is_meta:
        return
    key = blake3.blake3(f"shoal/initial/{seed}/{name}".encode()).digest(length=16)
    words = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(parameter.numel())
    sums = words.astype("<u8").view("<u2").reshape(-1, _DRAWS).sum(axis=1, dtype=np.int64)
    values = ((sums - _MEAN) * (deviation / _DEVIATION)).astype(np.float32)
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values).view(parameter.shape))
