"""The largest values of each chunk in one pass: add the residual, choose, fit a codebook, keep what is lost.

In flow an update and perhaps a residual; out flow, for each chunk, how many are kept, its codebook, and for each kept
value one word with its place and code, and perhaps the new residual. Invariant: the choice and the bits are those
of `codec/selection.py` and `codec/kept.py`. Magnitudes are compared as whole numbers, and summed in an order only
where a sum could round. A chunk with a NaN or an infinity keeps -1 values, and who called must look.
"""

import triton
import triton.language as tl

INFINITY = tl.constexpr(0x7F800000)
GUESSES = tl.constexpr(8)


@triton.jit
def cut_of(sizes, peak, keep):
    """A magnitude that just `keep` reach; or all above zero, if there are no more; or if some are equal, the one which
    the last of those kept has. Out: it, and how many reach it. Guesses take the logarithm of how many reach a
    magnitude for a line between two that are known; after some of them bisection ends it."""
    low = tl.full((), 1, tl.int32)
    high = peak + 1
    reach = tl.sum((sizes >= 1).to(tl.int32))
    share = 1.0 / keep.to(tl.float32)
    low_log = tl.log2(reach.to(tl.float32) * share)
    high_log = tl.log2(0.5 * share)
    tries = tl.full((), 0, tl.int32)
    side = tl.full((), 0, tl.int32)
    while (reach > keep) & (high - low > 1):
        bottom = low.to(tl.float32, bitcast=True)
        across = high.to(tl.float32, bitcast=True) - bottom
        guess = (bottom + across * (low_log / (low_log - high_log))).to(tl.int32, bitcast=True)
        middle = tl.where(tries < GUESSES, guess, low + (high - low) // 2)
        middle = tl.minimum(tl.maximum(middle, low + 1), high - 1)
        count = tl.sum((sizes >= middle).to(tl.int32))
        tries += 1
        if count >= keep:
            low = middle
            reach = count
            low_log = tl.log2(count.to(tl.float32) * share)
            high_log = tl.where(side == 1, high_log * 0.5, high_log)  # an end that stays is pulled closer
            side = tl.full((), 1, tl.int32)
        else:
            high = middle
            high_log = tl.log2(tl.maximum(count.to(tl.float32), 0.5) * share)
            low_log = tl.where(side == 2, low_log * 0.5, low_log)
            side = tl.full((), 2, tl.int32)
    return low, reach


@triton.jit
def end_of(equal, here, room, LENGTH: tl.constexpr):
    """The place before which just `room` of the equal ones lie: all of them, if there are no more than that."""
    low = tl.full((), 0, tl.int32)
    high = tl.full((), LENGTH, tl.int32)
    while high - low > 1:
        middle = (low + high) // 2
        if tl.sum((equal & (here < middle)).to(tl.int32)) <= room:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def fourths(values, LENGTH: tl.constexpr):
    """Every fourth value, from the first, second, third and fourth on: what a thread holds side by side."""
    evens, odds = tl.split(tl.reshape(values, (LENGTH // 4, 2, 2)))
    first, third = tl.split(evens)
    second, fourth = tl.split(odds)
    return first, second, third, fourth


@triton.jit
def list_places(kept, target, LENGTH: tl.constexpr):
    """Write the places of what is kept, in order. Four at a time are counted before any is written."""
    first, second, third, fourth = fourths(kept.to(tl.int32), LENGTH)
    here = tl.arange(0, LENGTH // 4) * 4
    many = first + second + third + fourth
    target += tl.cumsum(many) - many
    tl.store(target, here.to(tl.uint16), mask=first > 0)
    tl.store(target + first, (here + 1).to(tl.uint16), mask=second > 0)
    tl.store(target + first + second, (here + 2).to(tl.uint16), mask=third > 0)
    tl.store(target + first + second + third, (here + 3).to(tl.uint16), mask=fourth > 0)


@triton.jit
def two_means(magnitudes, lower, upper, is_exact, LENGTH: tl.constexpr):
    """The means of two sets of float64 numbers, zero of an empty one: summed one after the other, or in any order, if
    no such sum rounds."""
    low = tl.sum(tl.where(lower, magnitudes, 0.0))
    high = tl.sum(tl.where(upper, magnitudes, 0.0))
    if not is_exact:
        low = tl.full((), 0.0, tl.float64)
        high = tl.full((), 0.0, tl.float64)
        rank = tl.full((), 0, tl.int32)
        while rank < LENGTH:
            here = tl.arange(0, LENGTH) == rank
            low += tl.sum(tl.where(lower & here, magnitudes, 0.0))
            high += tl.sum(tl.where(upper & here, magnitudes, 0.0))
            rank += 1
    low /= tl.maximum(tl.sum(lower.to(tl.int32)), 1).to(tl.float64)
    high /= tl.maximum(tl.sum(upper.to(tl.int32)), 1).to(tl.float64)
    return low, high


@triton.jit
def to_bf16(mean):
    """A magnitude's upper bits in float32, to the nearest, ties to even, and never infinity."""
    bits = mean.to(tl.float32).to(tl.int32, bitcast=True)
    return tl.minimum((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, 0x7F7F)


@triton.jit
def from_bf16(book):
    return (book << 16).to(tl.float32, bitcast=True)


@triton.jit
def fit(sizes, kept, STEPS: tl.constexpr, LOG: tl.constexpr):
    """A codebook for kept magnitudes, as `Codebooks` of `codec/kept.py` has it: the mean, or those of either side of a
    middle, which are fitted twice. Out: its numbers, and the largest size that the first is for."""
    magnitudes = sizes.to(tl.float32, bitcast=True).to(tl.float64)
    # Numbers of 24 digits: a float64 of 53 holds any sum of 2**LOG of them, if their exponents differ this little.
    spread = tl.max(sizes >> 23) - tl.min(tl.where(kept, sizes, 0x7F800000) >> 23)
    is_exact = spread <= 53 - 24 - LOG
    middle = tl.full((), float("inf"), tl.float64)
    low = tl.full((), 0.0, tl.float64)
    high = tl.full((), 0.0, tl.float64)
    edge = tl.full((), 0, tl.int32)
    for turn in range(2 * STEPS - 1):
        upper = kept & (magnitudes > middle)
        low, high = two_means(magnitudes, kept & ~upper, upper, is_exact, 1 << LOG)
        middle = tl.where(turn == 0, low, (low + high) / 2.0)
        edge = tl.max(tl.where(upper, 0, sizes))
    return to_bf16(low), to_bf16(high), edge


@triton.jit(do_not_specialize=["first", "keep"])
def choose_rows(
    update,
    residual,
    counts,
    books,
    chosen,
    left,
    first,
    numel,
    keep,
    stride,
    decay,
    STEPS: tl.constexpr,
    CHUNK: tl.constexpr,
    KEPT_LOG: tl.constexpr,
    ADDS: tl.constexpr,
    LEAVES: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Program n of the launch takes chunk `first + n` and keeps `keep` of it, at most 2**KEPT_LOG. Chunks are
    listed `stride` apart. STEPS magnitudes, one or two, are in a codebook. ADDS says whether there is a residual,
    LEAVES whether one is wanted, WHOLE that no chunk of this launch reaches beyond `numel`."""
    row = first + tl.program_id(0)
    start = row.to(tl.int64) * CHUNK
    update += start
    residual += start
    left += start
    here = tl.arange(0, CHUNK)
    if WHOLE:
        wanted = tl.load(update + here)
        if ADDS:
            wanted = wanted + tl.load(residual + here)
    else:
        inside = here < numel - start
        wanted = tl.load(update + here, mask=inside, other=0.0)
        if ADDS:
            wanted = wanted + tl.load(residual + here, mask=inside, other=0.0)
    sizes = wanted.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    peak = tl.max(sizes)
    cut, reach = cut_of(sizes, peak, keep)
    kept = sizes >= cut
    if reach > keep:
        room = keep - tl.sum((sizes > cut).to(tl.int32))
        kept = (sizes > cut) | ((sizes == cut) & (here < end_of(sizes == cut, here, room, CHUNK)))
    number = tl.minimum(reach, keep)
    tl.store(counts + row, tl.where(peak < INFINITY, number, -1))
    chosen += row.to(tl.int64) * stride
    list_places(kept, chosen, CHUNK)

    # The few that are kept are read again, from the list: to fit a codebook to them takes no time then.
    tl.debug_barrier()
    ranks = tl.arange(0, 1 << KEPT_LOG)
    listed = ranks < number
    places = tl.load(chosen + ranks, mask=listed, other=0).to(tl.int32)
    values = tl.load(update + places, mask=listed, other=0.0)
    if ADDS:
        values = values + tl.load(residual + places, mask=listed, other=0.0)
    bits = values.to(tl.int32, bitcast=True)
    low, high, edge = fit(bits & 0x7FFFFFFF, listed, STEPS, KEPT_LOG)
    tl.store(books + STEPS * row, low)
    if STEPS == 2:
        tl.store(books + STEPS * row + 1, high)
    codes = ((bits & 0x7FFFFFFF) > edge).to(tl.int32) + ((bits < 0).to(tl.int32) << 1)
    tl.store(chosen + ranks, ((places << 2) | codes).to(tl.uint16), mask=listed)
    if LEAVES:
        level = tl.where(sizes > edge, from_bf16(high), from_bf16(low))
        level = tl.where(wanted < 0.0, -level, level)
        lost = (
            tl.where(kept, wanted - level, wanted + 0.0) * decay
        )  # plus: less -0.0, which unsent values decode to
        if WHOLE:
            tl.store(left + here, lost)
        else:
            tl.store(left + here, lost, mask=inside)
