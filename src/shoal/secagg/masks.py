"""Seeds to streams of numbers, added to an update or taken off a sum.

In flow numbers modulo 2^32 and seeds with their signs; out flow the same numbers, changed in place. Invariant: a seed
gives the same stream everywhere, and is used for one update only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from shoal.secagg.fixed import Words

SEED_BYTES = 32
_CHUNK = 1 << 16
"""Numbers at a time: they and a stream's part stay in a core's own cache while all streams pass."""
_START = bytes(16)
"""Counter and nonce; a seed is a key of its own, and never used again."""


@dataclass(frozen=True, slots=True)
class Mask:
    seed: bytes
    adds: bool


def apply(words: Words, masks: Sequence[Mask]) -> None:
    """Add every mask's stream to the numbers, or subtract it, modulo 2^32."""
    streams = [
        (Cipher(algorithms.ChaCha20(mask.seed, _START), mode=None).encryptor(), mask.adds) for mask in masks
    ]
    silence, raw = bytes(4 * _CHUNK), bytearray(4 * _CHUNK)
    part = np.frombuffer(raw, dtype="<u4")
    for start in range(0, len(words), _CHUNK):
        here = words[start : start + _CHUNK]
        size = len(here)
        for stream, adds in streams:
            stream.update_into(memoryview(silence)[: 4 * size], raw)
            (np.add if adds else np.subtract)(here, part[:size], out=here)


def opposite(masks: Sequence[Mask]) -> list[Mask]:
    return [Mask(mask.seed, not mask.adds) for mask in masks]
