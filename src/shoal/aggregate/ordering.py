"""Rows of values sorted in every coordinate.

In flow rows of one chunk; out flow rows, the least values in the first. Invariant: only minima and maxima of two are
taken, which are exact, in the order of a fixed network (Batcher's), so that no library's sort is asked.
"""

from __future__ import annotations

from functools import lru_cache

import torch

_AT_ONCE = 4096
"""Values of a row that are sorted together, so that all rows of them stay in the cache."""


def sort_rows(rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """Sort them in place, coordinate by coordinate; values must have no NaN and no minus zero."""
    lower = torch.empty_like(rows[0][:_AT_ONCE])
    for start in range(0, rows[0].numel(), _AT_ONCE):
        parts = [row[start : start + _AT_ONCE] for row in rows]
        room = lower[: parts[0].numel()]
        for low, high in network(len(rows)):
            torch.minimum(parts[low], parts[high], out=room)
            torch.maximum(parts[low], parts[high], out=parts[high])
            parts[low].copy_(room)
    return rows


@lru_cache(maxsize=64)
def network(count: int) -> tuple[tuple[int, int], ...]:
    """Pairs to put in order, one after another, so that any `count` values end up sorted."""
    pairs = []
    block = 1
    while block < count:
        step = block
        while step:
            for first in range(step % block, count - step, 2 * step):
                for low in range(first, min(first + step, count - step)):
                    if low // (2 * block) == (low + step) // (2 * block):
                        pairs.append((low, low + step))
            step //= 2
        block *= 2
    return tuple(pairs)
