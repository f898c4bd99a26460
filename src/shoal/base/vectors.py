"""Memory for vectors as long as the model, used again and again.

In flow lengths; out flow vectors of no particular content. Invariant: memory is handed out again only after
the last tensor, view or array over it is gone, and at most `KEEP_BYTES` of it lie idle.

A round makes and drops a few such vectors. From the C library they come with holes that something small has since moved
into, so that every third one or so is fresh memory, which costs more to be given, page by page, than to be filled: on a
rented machine twenty times as much.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque

import numpy as np
import torch

KEEP_BYTES = 512 << 20
LEAST_BYTES = 4 << 20
"""What is smaller is the C library's."""
_GRAIN = 1 << 20

_idle: deque[mmap.mmap] = deque()


def like(values: torch.Tensor) -> torch.Tensor:
    """A vector of the same length, type and device, to be written to."""
    size = values.numel() * values.element_size()
    if (
        values.device.type != "cpu"
        or values.dtype != torch.float32
        or values.dim() != 1
        or size < LEAST_BYTES
    ):
        return torch.empty_like(values)
    return torch.from_numpy(_taken(size).view(np.float32))


def copy_of(values: torch.Tensor) -> torch.Tensor:
    return like(values).copy_(values)


def _taken(size_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    block = _idle_block(size_bytes) or _fresh(-(-size_bytes // _GRAIN) * _GRAIN)
    whole = np.frombuffer(block, np.uint8)
    weakref.finalize(whole, _give_back, block).atexit = False
    return whole[:size_bytes]


def _fresh(size_bytes: int) -> mmap.mmap:
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return mmap.mmap(-1, size_bytes)
    # Python's own choice would be shared with a process that is forked off.
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _idle_block(size_bytes: int) -> mmap.mmap | None:
    """One that is large enough, and not by much."""
    for _ in range(len(_idle)):
        try:
            block = _idle.popleft()
        except IndexError:  # Another thread took the last one.
            return None
        if 0 <= len(block) - size_bytes <= 2 * _GRAIN:
            return block
        _idle.append(block)
    return None


def _give_back(block: mmap.mmap) -> None:
    """Called when nothing refers to its memory any more, in whatever thread that happens: so without a lock."""
    _idle.append(block)
    while sum(map(len, tuple(_idle))) > KEEP_BYTES:
        try:
            _idle.popleft()
        except IndexError:
            return
