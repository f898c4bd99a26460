"""Bit rot in small files of this machine's own: told by a checksum beside the file, and mended by it.

In flow a file's bytes and its checksum; out flow the bytes as they were. Invariant: nothing is mended to anything but
what the checksum names; a checksum tells nothing of a secret that has 128 bits or more.
"""

from __future__ import annotations

import blake3

SUFFIX = ".sum"
LONGEST = 4096
"""Bytes of a file that is mended by trying: beyond, that takes too long."""


def checksum(data: bytes) -> bytes:
    """What is written beside a file."""
    return blake3.blake3(data).hexdigest().encode() + b"\n"


def is_sound(data: bytes, known: bytes) -> bool:
    """True if the bytes are those that the checksum was made of, or if it is the checksum that rotted: it is none any
    more, or wrong in one digit, which no other bytes would make it."""
    text, right = known.strip(), checksum(data).strip()
    return not _is_sum(text) or sum(a != b for a, b in zip(text, right, strict=True)) <= 1


def mended(data: bytes, known: bytes) -> bytes | None:
    """The bytes with one of them put right, so that they fit the checksum; None if no single one does it."""
    if len(data) > LONGEST or not _is_sum(known.strip()):
        return None
    wanted, trial = bytes.fromhex(known.strip().decode()), bytearray(data)
    for index, old in enumerate(data):
        for value in range(256):
            trial[index] = value
            if blake3.blake3(trial).digest() == wanted:
                return bytes(trial)
        trial[index] = old
    return None


def _is_sum(text: bytes) -> bool:
    return len(text) == 64 and all(digit in b"0123456789abcdef" for digit in text)
