"""Any number of dense updates decoded and added up in one pass, without a dense copy of any.

In flow addresses of codebooks and packed codes; out flows their sum, each times its factor. Invariant: the bits of
decoding one after the other and adding: `scale * factor` rounds before the whole number is multiplied by it, and
nothing is fused.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["start", "many"])
def add_up(
    books_of,
    packed_of,
    factors,
    out,
    start,
    count,
    many,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    ADDS: tl.constexpr,
):
    """Values [start, start + count) of `many` updates, in order: into `out`, or onto it with ADDS."""
    PER: tl.constexpr = 8 // BITS
    at = tl.program_id(0).to(tl.int64) * TILE
    inside = tl.arange(0, TILE // PER)[:, None] * PER + tl.arange(0, PER)[None, :]
    mask = inside < count - at
    bytes_here = (start + at) // PER + tl.arange(0, TILE // PER)
    bytes_mask = tl.arange(0, TILE // PER) * PER < count - at
    rows = (start + at + inside) // BLOCK
    shifts = tl.arange(0, PER)[None, :] * BITS
    total = tl.zeros((TILE // PER, PER), tl.float32)
    if ADDS:
        total = tl.load(out + at + inside, mask=mask, other=0.0)
    number = tl.full((), 0, tl.int32)
    while number < many:
        books = tl.load(books_of + number).to(tl.pointer_type(tl.float32))
        packed = tl.load(packed_of + number).to(tl.pointer_type(tl.uint8))
        factor = tl.load(factors + number)
        found = tl.load(packed + bytes_here, mask=bytes_mask, other=0).to(tl.int32)
        codes = (found[:, None] >> shifts) & ((1 << BITS) - 1)
        if BITS == 2:
            outer = (codes == 0) | (codes == 3)
            level = tl.load(books + 2 * rows + outer.to(tl.int32), mask=mask, other=0.0)
            value = (tl.where(codes < 2, -level, level) + 0.0) * factor  # plus: a level is never minus zero
        else:
            if BITS == 8:
                whole = (codes << 24) >> 24
            elif BITS == 4:
                whole = codes - 8
            else:
                whole = 2 * codes - 1
            value = whole.to(tl.float32) * (tl.load(books + rows, mask=mask, other=0.0) * factor)
        total = tl.where(number + ADDS == 0, value, total + value)  # the first is not added to a zero
        number += 1
    tl.store(out + at + inside, total, mask=mask)
