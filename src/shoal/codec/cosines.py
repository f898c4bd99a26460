"""The basis of the discrete cosine transform, in whole numbers.

Out flows, for a length, its DCT-II basis as integers that stand for so many 2^-22. Invariant: they are computed in
integers from the first digit of pi to the last rounding, so no machine's trigonometry has a say; as float32 they are
exact.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import torch

BITS = 22
"""Basis and quantised values have this many, so that 256 products of the two add up exactly in a double."""

_FINE = 96
_ONE = 1 << _FINE
_PI = (314159265358979323846264338327950288419716939937510 << _FINE) // 10**50


@lru_cache(maxsize=8)
def dct_basis(length: int) -> torch.Tensor:
    """Row k is the k-th cosine, orthonormal up to its rounding; float64 whole numbers."""
    waves = [_cosine(step, 2 * length) for step in range(4 * length)]
    first, others = isqrt(_ONE * _ONE // length), isqrt(_ONE * _ONE * 2 // length)
    rows = [
        [
            _rounded(waves[(2 * place + 1) * row % (4 * length)] * (others if row else first))
            for place in range(length)
        ]
        for row in range(length)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _rounded(product: int) -> int:
    drop = 2 * _FINE - BITS
    return (product + (1 << (drop - 1))) >> drop


def _cosine(numerator: int, denominator: int) -> int:
    """cos(pi * numerator / denominator), by its series, until its terms vanish."""
    angle = _PI * numerator // denominator
    square = (angle * angle) >> _FINE
    total, term, power = 0, _ONE, 0
    while abs(term) > 1:
        total += term
        term = -(term * square // ((power + 1) * (power + 2) << _FINE))
        power += 2
    return total
