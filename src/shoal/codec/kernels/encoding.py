"""Dense codes of eight, four, two or one bit in one pass: add the residual, fit, quantise, pack, keep what is lost.

In flow an update and perhaps a residual; out flow codebooks, packed codes and perhaps the new residual. Invariant: the
same bits as `codec/int8.py` and `codec/levels.py` compute on a CPU: each operation rounds as IEEE says, none is
fused with the next, and sums go by the same halving as `pairwise_sum`. A block with a NaN or an infinity gets a
codebook that is not finite, and who called must look.
"""

import triton
import triton.language as tl

# Added to a small float, it leaves no room for a fraction: 1.5 * 2**23 rounds to the nearest, ties to even.
ROUNDER = tl.constexpr(12582912.0)
FIRST_THRESHOLD = tl.constexpr(0.79)


@triton.jit
def to_whole(values):
    """Values well within +-2**22, rounded to whole numbers, never minus zero."""
    return (values + ROUNDER) - ROUNDER


@triton.jit
def halving_sums(rows, ROWS: tl.constexpr, WIDTH: tl.constexpr, LEFT: tl.constexpr, LEVELS: tl.constexpr):
    """Each row's sum, its upper half added to its lower one until LEFT are left: rows of WIDTH = LEFT * 2**LEVELS."""
    for level in tl.static_range(LEVELS):
        rows = tl.sum(tl.reshape(rows, (ROWS, 2, WIDTH >> (level + 1))), axis=1)
    return tl.reshape(rows, (ROWS, LEFT))


@triton.jit
def fit_eight(rows):
    """A scale by the largest magnitude. Out: scale, codes as whole numbers, decoded values."""
    sizes = rows.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    scale = tl.math.div_rn(tl.max(sizes, axis=1).to(tl.float32, bitcast=True), 127.0)
    safe = tl.where(scale > 0.0, scale, 1.0)
    steps = tl.math.div_rn(rows, tl.broadcast_to(safe[:, None], rows.shape))
    whole = to_whole(tl.minimum(tl.maximum(steps, -127.0), 127.0))
    return scale, whole.to(tl.int32), whole * scale[:, None]


@triton.jit
def fit_four(rows):
    """Sixteen even steps from the extreme value: of two that are as large, the negative one."""
    bits = rows.to(tl.uint32, bitcast=True)
    found = tl.max((bits << 1) | (bits >> 31), axis=1)
    extreme = ((found >> 1) | (found << 31)).to(tl.float32, bitcast=True)
    step = tl.math.div_rn(extreme, -8.0)
    divisor = tl.where(step != 0.0, step, 1.0)
    step = tl.where(step != 0.0, step, 0.0)
    steps = tl.math.div_rn(rows, tl.broadcast_to(divisor[:, None], rows.shape))
    whole = to_whole(tl.minimum(tl.maximum(steps, -8.0), 7.0))
    return step, whole.to(tl.int32) + 8, whole * step[:, None]


@triton.jit
def fit_two(rows, counts, ROWS: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr):
    """A small and a large magnitude: `_two_magnitudes` of `codec/levels.py`, line by line."""
    bits = rows.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    peak = tl.max(bits, axis=1).to(tl.float32, bitcast=True)
    peak = tl.where(peak == 0.0, 1.0, peak)
    sizes = tl.abs(tl.math.div_rn(rows, tl.broadcast_to(peak[:, None], rows.shape)))
    both = tl.reshape(tl.join(sizes, sizes * sizes), (ROWS, 2 * BLOCK))
    total, squares = tl.split(halving_sums(both, ROWS, 2 * BLOCK, 2, LEVELS))
    threshold = tl.math.div_rn(squares, tl.where(total > 0.0, total, 1.0)) * FIRST_THRESHOLD
    beyond = tl.maximum(sizes - threshold[:, None], 0.0)
    excess = tl.reshape(halving_sums(beyond, ROWS, BLOCK, 1, LEVELS), (ROWS,))
    many = tl.sum((beyond > 0.0).to(tl.int32), axis=1).to(tl.float32)
    large = threshold + tl.math.div_rn(excess, tl.maximum(many, 1.0))
    rest = tl.maximum((total - excess) - many * threshold, 0.0)
    small = tl.math.div_rn(rest, tl.maximum(counts - many, 1.0))
    small = tl.minimum(small, large) * peak
    large = large * peak
    middle = small * 0.5 + large * 0.5
    divisor = tl.where(middle > 0.0, middle, 1.0)
    places = tl.math.div_rn(rows, tl.broadcast_to(divisor[:, None], rows.shape)) + 2.0
    codes = tl.minimum(tl.maximum(places, 0.0), 3.0).to(tl.int32)
    level = tl.where((codes == 0) | (codes == 3), large[:, None], small[:, None])
    return small, large, codes, tl.where(codes < 2, -level, level) + 0.0  # plus: a level is never minus zero


@triton.jit
def fit_one(rows, counts, ROWS: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr):
    """Signs, and the mean magnitude."""
    total = tl.reshape(halving_sums(tl.abs(rows), ROWS, BLOCK, 1, LEVELS), (ROWS,))
    mean = tl.math.div_rn(total, counts)
    codes = (rows.to(tl.int32, bitcast=True) >> 31) + 1
    return mean, codes, (2 * codes - 1).to(tl.float32) * mean[:, None]


@triton.jit(do_not_specialize=["first"], do_not_specialize_on_alignment=["packed", "books"])
def encode_rows(
    update,
    residual,
    books,
    packed,
    left,
    first,
    numel,
    decay,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
    ROWS: tl.constexpr,
    ADDS: tl.constexpr,
    LEAVES: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Program n of the launch takes tile `first + n`: ROWS blocks of BLOCK = 2**LEVELS values. ADDS says whether there
    is a residual, LEAVES whether one is wanted, WHOLE that no tile of this launch reaches beyond `numel`."""
    TILE: tl.constexpr = ROWS * BLOCK
    PER: tl.constexpr = 8 if BITS == 1 else 4  # codes to a word: what one thread has of them, or two
    start = (first + tl.program_id(0)).to(tl.int64) * TILE
    here = tl.arange(0, TILE)
    words_here = tl.arange(0, TILE // PER)
    rows_here = tl.arange(0, ROWS)
    if WHOLE:
        room = TILE
        inside = tl.full((TILE,), True, tl.int1)
        wanted = tl.load(update + start + here)
        if ADDS:
            wanted = wanted + tl.load(residual + start + here)
    else:
        room = (numel - start).to(tl.int32)
        inside = here < room
        wanted = tl.load(update + start + here, mask=inside, other=0.0)
        if ADDS:
            wanted = wanted + tl.load(residual + start + here, mask=inside, other=0.0)
    rows = tl.reshape(wanted, (ROWS, BLOCK))
    counts = tl.minimum(tl.maximum(room - rows_here * BLOCK, 1), BLOCK).to(tl.float32)
    book = start // BLOCK + rows_here
    kept = rows_here * BLOCK < room
    if BITS == 8:
        scale, codes, decoded = fit_eight(rows)
        tl.store(books + book, scale, mask=kept)
    elif BITS == 4:
        scale, codes, decoded = fit_four(rows)
        tl.store(books + book, scale, mask=kept)
    elif BITS == 2:
        small, large, codes, decoded = fit_two(rows, counts, ROWS, BLOCK, LEVELS)
        tl.store(books + 2 * book, small, mask=kept)
        tl.store(books + 2 * book + 1, large, mask=kept)
    else:
        scale, codes, decoded = fit_one(rows, counts, ROWS, BLOCK, LEVELS)
        tl.store(books + book, scale, mask=kept)
    codes = tl.reshape(codes, (TILE,))
    if not WHOLE:
        codes = tl.where(inside, codes, 0)
    shifts = tl.arange(0, PER) * BITS
    codes = (codes & ((1 << BITS) - 1)).to(tl.uint32)
    words = tl.sum(tl.reshape(codes, (TILE // PER, PER)) << shifts[None, :], axis=1)
    target = packed + start // PER + words_here
    if WHOLE:
        tl.store(target, words)
    else:
        tl.store(target, words, mask=words_here * PER < room)
    if LEAVES:
        lost = (wanted - tl.reshape(decoded, (TILE,))) * decay
        if WHOLE:
            tl.store(left + start + here, lost)
        else:
            tl.store(left + start + here, lost, mask=inside)
