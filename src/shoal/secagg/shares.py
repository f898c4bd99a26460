"""A secret in n shares, any t of which give it back, and fewer say nothing about it (Shamir).

In flow 32 secret bytes; out flow shares, each for one place from 1 on, and back. Invariant: arithmetic is in one prime
field that every secret fits into; shares of another form are refused before they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

PRIME = 2**521 - 1
SHARE_BYTES = 66
SECRET_BYTES = 32
Draw = Callable[[int], bytes]
"""So many random bytes."""


def split(secret: bytes, threshold: int, places: Sequence[int], draw: Draw) -> dict[int, bytes]:
    """A share for each place. The polynomial's other coefficients are drawn, with bits to spare to be even."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(places) or min(places) < 1:
        raise ValueError(f"no {threshold} of {len(places)} shares of {len(secret)} bytes")
    drawn = [int.from_bytes(draw(SHARE_BYTES + 16), "big") % PRIME for _ in range(threshold - 1)]
    coefficients = [int.from_bytes(secret, "big"), *drawn]
    return {place: _at(coefficients, place).to_bytes(SHARE_BYTES, "big") for place in places}


def join(shares: Mapping[int, bytes], threshold: int) -> bytes | None:
    """The secret from the first `threshold` of these shares, by place; None if they are too few or give none."""
    chosen = sorted(shares)[:threshold]
    if len(chosen) < threshold or any(not is_share(shares[place]) for place in chosen):
        return None
    total = sum(int.from_bytes(shares[x], "big") * _weight(x, chosen) for x in chosen) % PRIME
    return total.to_bytes(SHARE_BYTES, "big")[-SECRET_BYTES:] if total < 2 ** (8 * SECRET_BYTES) else None


def is_share(data: bytes) -> bool:
    return len(data) == SHARE_BYTES and int.from_bytes(data, "big") < PRIME


def _at(coefficients: Sequence[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value


def _weight(place: int, places: Sequence[int]) -> int:
    """What a share counts for in the polynomial's value at 0 (Lagrange)."""
    above = below = 1
    for other in places:
        if other != place:
            above, below = above * other % PRIME, below * (other - place) % PRIME
    return above * pow(below, -1, PRIME) % PRIME
