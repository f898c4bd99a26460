"""Which sample a global counter stands for.

In flow the run's seed and a range of counters; out flow sample indices. Invariant: every epoch of `items`
counters visits every sample exactly once, so nodes that hold disjoint counter ranges within an epoch never
train on the same sample, and nobody has to store a permutation: it is computed, in O(count) memory.
"""

from __future__ import annotations

from functools import lru_cache

import blake3
import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

ROUNDS = 8
FEW = 16
_ALL = (1 << 64) - 1
_SHIFT = np.uint64(33)
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


def sample_indices(seed: int, start: int, count: int, items: int) -> Indices:
    """The samples with counters [start, start + count), out of `items`."""
    if items < 1 or start < 0 or count < 0:
        raise ValueError(f"no samples [{start}, {start}+{count}) of {items}")
    chosen = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        epoch, offset = divmod(start + done, items)
        take = min(count - done, items - offset)
        keys = _round_keys(seed, epoch)
        if take <= FEW:
            chosen[done : done + take] = [
                _walked(place, items, keys) for place in range(offset, offset + take)
            ]
        else:
            places = np.arange(offset, offset + take, dtype=np.uint64)
            chosen[done : done + take] = _permuted(places, items, keys)
        done += take
    return chosen


def part_samples(seed: int, places: Indices, items: int) -> Indices:
    """The samples at these places of an order of all `items` that is drawn for cutting them into parts."""
    mixed = int.from_bytes(blake3.blake3(f"shoal/parts/{seed}".encode()).digest(length=7), "little")
    return _permuted(places.astype(np.uint64), items, _round_keys(mixed, 0)).astype(np.int64)


@lru_cache(maxsize=16)
def _round_keys(seed: int, epoch: int) -> _Words:
    digest = blake3.blake3(f"shoal/sample/{seed}/{epoch}".encode()).digest(length=8 * ROUNDS)
    keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
    keys.flags.writeable = False  # It is everybody's.
    return keys


def _permuted(places: _Words, items: int, keys: _Words) -> _Words:
    """A keyed permutation of [0, items): a Feistel network over the next power of two, walked until inside.

    The power of two is less than twice `items`, so a value needs two walks on average.
    """
    bits = (items - 1).bit_length()
    values = _feistel(places, bits, keys)
    outside = np.flatnonzero(values >= items)
    while outside.size:
        walked = _feistel(values[outside], bits, keys)
        values[outside] = walked
        outside = outside[walked >= items]
    return values


def _walked(place: int, items: int, keys: _Words) -> int:
    """The same for one place, in plain numbers: for a few of them that is quicker than arrays are."""
    bits = (items - 1).bit_length()
    low_bits = bits - bits // 2
    masks, rounds = ((1 << low_bits) - 1, (1 << bits // 2) - 1), keys.tolist()
    value = place
    while True:
        low, high = value & masks[0], value >> low_bits
        for number, key in enumerate(rounds):
            if number % 2:
                high ^= _mixed_number(low ^ key) & masks[1]
            else:
                low ^= _mixed_number(high ^ key) & masks[0]
        value = high << low_bits | low
        if value < items:
            return value


def _mixed_number(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _ALL
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _ALL
    return word ^ word >> 33


def _feistel(values: _Words, bits: int, keys: _Words) -> _Words:
    low_bits = bits - bits // 2
    low_mask, high_mask = np.uint64((1 << low_bits) - 1), np.uint64((1 << bits // 2) - 1)
    shift = np.uint64(low_bits)
    low, high = values & low_mask, values >> shift
    for number, key in enumerate(keys):
        if number % 2:
            high = high ^ (_mixed(low ^ key) & high_mask)
        else:
            low = low ^ (_mixed(high ^ key) & low_mask)
    return (high << shift) | low


def _mixed(words: _Words) -> _Words:
    """A bijection of 64-bit words in which every input bit reaches every output bit."""
    words = (words ^ (words >> _SHIFT)) * _FIRST
    words = (words ^ (words >> _SHIFT)) * _SECOND
    return words ^ (words >> _SHIFT)
