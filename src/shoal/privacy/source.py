"""Randomness that nobody else can guess: noise, and which samples a step takes.

In flow fresh secret bytes from the host; out flow uniform and normal numbers and drawn samples. Invariant: nothing here
comes from the run's public seed: whoever knew the noise could subtract it, and whoever knew the samples of a step would
not be fooled by their having been drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

KEY_BYTES = 32
_NONCE = bytes(16)
_SLAB = 1 << 20
Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


class SecretSource:
    """Streams of ChaCha20, each under a fresh key of the host's."""

    def __init__(self, fresh: Callable[[int], bytes]) -> None:
        self._fresh = fresh

    def uniform(self, count: int) -> Floats:
        """Above 0, and 1 at most, in steps of 2**-53."""
        stream = Cipher(ChaCha20(self._fresh(KEY_BYTES), _NONCE), mode=None).encryptor()
        words = np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8") >> np.uint64(11)
        return (words.astype(np.float64) + 1.0) * 2.0**-53

    def normal(self, count: int) -> torch.Tensor:
        """Independent, of mean 0 and deviation 1; float32 on the CPU."""
        slabs = [self._some_normal(min(_SLAB, count - first)) for first in range(0, count, _SLAB)]
        return torch.cat(slabs) if slabs else torch.empty(0)

    def _some_normal(self, count: int) -> torch.Tensor:
        half = -(-count // 2)
        drawn = self.uniform(2 * half)
        length, angle = np.sqrt(-2.0 * np.log(drawn[:half])), 2.0 * math.pi * drawn[half:]
        both = np.concatenate((length * np.cos(angle), length * np.sin(angle)))[:count]
        return torch.from_numpy(both.astype(np.float32))

    def chosen(self, items: int, rate: float) -> Places:
        """Of [0, items), each with this chance, independently, in order."""
        if rate >= 1:
            return np.arange(items, dtype=np.int64)
        expected = items * rate
        some = int(expected + 6 * math.sqrt(expected)) + 16
        found: list[Places] = []
        last = -1
        while last < items:
            # The gaps between those who are chosen are geometric.
            gaps = np.floor(np.log(self.uniform(some)) / math.log1p(-rate)) + 1
            places = last + np.cumsum(np.minimum(gaps, items + 1.0)).astype(np.int64)
            found.append(places)
            last = int(places[-1])
        places = np.concatenate(found)
        return places[places < items]
