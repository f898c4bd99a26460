"""A blob in coded pieces, any k of which give it back.

In flow bytes; out flow n pieces of a k-th of the size each, or the bytes again. Invariant: the same bytes give the same
pieces everywhere; whoever puts pieces together checks the blob's own id, so that a wrong code yields nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import zfec

from shoal.base.disk import Buffer


def cut_pieces(data: Buffer, needed: int, count: int) -> list[bytes]:
    """`count` pieces of a blob, any `needed` of which are enough; the first so many are its own bytes."""
    size = -(-len(data) // needed)
    padded = bytes(data).ljust(size * needed, b"\0")
    blocks = [padded[number * size : (number + 1) * size] for number in range(needed)]
    return [bytes(piece) for piece in zfec.Encoder(needed, count).encode(blocks)]


def join_pieces(pieces: Mapping[int, bytes], needed: int, count: int, size_bytes: int) -> bytes:
    """The blob that pieces, by their numbers, were cut from. Raises ValueError if they are too few, or uneven."""
    chosen = sorted(pieces)[:needed]
    sizes = {len(pieces[number]) for number in chosen}
    if len(chosen) < needed or sizes != {-(-size_bytes // needed)} or not 0 <= chosen[-1] < count:
        raise ValueError(f"{len(chosen)} of {needed} pieces")
    blocks = zfec.Decoder(needed, count).decode([pieces[number] for number in chosen], chosen)
    return b"".join(bytes(block) for block in blocks)[:size_bytes]
