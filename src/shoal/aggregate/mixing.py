"""What may come before a robust rule: updates are mixed with others, and the rule votes on the mixtures.

In flow rows; out flow rows. Invariant: whom an update is mixed with depends on distances, or on the round's seed, never
on weights; within a mixture each counts by its weight.
"""

from __future__ import annotations

import math

import blake3

from shoal.aggregate.rows import Rows, by_weight, lower_median, nearest

_NEGLIGIBLE = 2.0**-40
"""A row shorter than the median by this factor has no direction that could be made longer."""

_SAME = 0.25


def even_lengths(rows: Rows) -> Rows:
    """Each row brought to the median length, and those without any left out: nobody leads by sending much, or slows the
    others by sending little."""
    lengths = [math.sqrt(row[i]) for i, row in enumerate(rows.products)]
    if not any(lengths):
        return rows
    median = lower_median([length for length in lengths if length])
    kept = [i for i, length in enumerate(lengths) if length > median * _NEGLIGIBLE]
    shares = [[median / lengths[i] if i == j else 0.0 for j in range(len(rows))] for i in kept]
    return rows.mixed(shares, by_weight([1.0] * len(kept), [rows.weights[i] for i in kept]))


def distinct(rows: Rows) -> Rows:
    """Rows that say the same become one, their mean, with one's weight: whoever copies another, or itself, gains no
    vote. The same is what is nearer than a quarter of a typical row's distance from a majority, by steps as short, and
    nowhere half of it apart: rows that bridge the way from one honest row to another would make one of the two, and
    count for more lies than there are."""
    majority = len(rows) // 2
    reach = lower_median([sorted(row)[majority] for row in rows.apart]) * _SAME * _SAME
    groups = _joined([{j for j, far in enumerate(row) if far < reach} for row in rows.apart])
    groups = [part for group in groups for part in _unbridged(group, rows.apart, reach)]
    if len(groups) == len(rows):
        return rows
    shares = [
        by_weight([1.0 if j in group else 0.0 for j in range(len(rows))], rows.weights) for group in groups
    ]
    weights = [math.fsum(rows.weights[j] for j in group) / len(group) for group in groups]
    return rows.mixed(shares, by_weight([1.0] * len(groups), weights))


def _joined(near: list[set[int]]) -> list[set[int]]:
    """Everybody once, together with all whom one reaches by going from near to near."""
    groups: list[set[int]] = []
    for first in range(len(near)):
        if any(first in group for group in groups):
            continue
        group, waiting = {first}, [first]
        while waiting:
            new = near[waiting.pop()] - group
            group |= new
            waiting += sorted(new)
        groups.append(group)
    return groups


def _unbridged(group: set[int], apart: list[list[float]], reach: float) -> list[set[int]]:
    """The group, or each of it alone if it is wider than two steps (distances are squares)."""
    wide = any(apart[i][j] >= 4 * reach for i in group for j in group)
    return [{i} for i in sorted(group)] if wide and len(group) > 1 else [group]


def nearest_neighbours(rows: Rows, liars: int) -> Rows:
    """Nearest-neighbour mixing (arXiv 2302.01772): each row becomes the mean of the n - f nearest to it, itself among
    them. Honest rows come closer to one another, so that a liar has less room to hide in their spread."""
    if not liars:
        return rows
    shares = [by_weight(nearest(row, len(rows) - liars), rows.weights) for row in rows.apart]
    return rows.mixed(shares, rows.weights)


def buckets(rows: Rows, size: int) -> Rows:
    """Bucketing (arXiv 2006.09365): means of `size` rows each, drawn by the round's seed; the last may be of fewer. A
    liar spoils one bucket."""
    if size == 1 or len(rows) == 1:
        return rows
    seed = rows.gathering.seed or ""
    drawn = sorted(
        range(len(rows)), key=lambda i: blake3.blake3(f"shoal/bucket/{seed}/{i}".encode()).digest()
    )
    shares, weights = [], []
    for first in range(0, len(rows), size):
        inside = set(drawn[first : first + size])
        chosen = [1.0 if i in inside else 0.0 for i in range(len(rows))]
        shares.append(by_weight(chosen, rows.weights))
        weights.append(math.fsum(rows.weights[i] for i in inside))
    return rows.mixed(shares, weights)
