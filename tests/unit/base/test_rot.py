"""One wrong byte in a small file is told by its checksum, and put right by it."""

from __future__ import annotations

import os

import pytest

from shoal.base.rot import LONGEST, checksum, is_sound, mended


@pytest.mark.parametrize("place", [0, 31, 64])
def test_any_single_byte_is_put_right(place: int) -> None:
    secret = os.urandom(32).hex().encode() + b"\n"
    damaged = bytearray(secret)
    damaged[place] ^= 0x41
    known = checksum(secret)
    assert is_sound(secret, known) and not is_sound(bytes(damaged), known)
    assert mended(bytes(damaged), known) == secret


def test_what_one_byte_does_not_explain_is_left() -> None:
    secret = b"a" * 40
    known = checksum(secret)
    assert mended(b"bb" + secret[2:], known) is None
    assert mended(secret[:-1], known) is None
    assert mended(bytes(LONGEST + 1), known) is None


@pytest.mark.parametrize("flip", [0x03, 0xFF])
def test_a_damaged_checksum_blames_nobody(flip: int) -> None:
    """Neither where it is none any more, nor where another digit stands in it."""
    known = bytearray(checksum(b"secret"))
    known[3] ^= flip
    assert is_sound(b"secret", bytes(known)) and mended(b"secret", bytes(known)) is None
