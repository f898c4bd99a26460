"""Memory that was freed is kept for the next vector: the system's own way is to hand every large one back and to fault
it in again, page by page, which costs more than most arithmetic on it.

In flows nothing; out flow faster large vectors, where the C library can be told. Invariant: no more than `KEEP_BYTES`
of free memory is kept at the end of the heap, and where nothing can be told nothing changes.
"""

from __future__ import annotations

import ctypes
import gc
import sys

KEEP_BYTES = 512 << 20
LARGE_BYTES = 1 << 30
"""Only what is larger goes by itself, and back at once."""
_ONE_HEAP, _LARGE, _KEEP = -8, -3, -1


def keep_freed_memory() -> bool:
    """Tell the C library; False if it cannot be told."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        tell = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # Not glibc.
        return False
    # Threads' own heaps are too small for large vectors: one for all.
    return all(
        tell(what, value) for what, value in ((_ONE_HEAP, 1), (_LARGE, LARGE_BYTES), (_KEEP, KEEP_BYTES))
    )


SELDOM = (10_000, 20, 20)
"""Python's own is (700, 10, 10): with thousands of connections a whole collection takes most of a second, and nobody
is answered meanwhile. Even so there is one for about every ten thousand connections that came and went."""


def collect_seldom() -> None:
    """For a process with many connections and little garbage that refers to itself."""
    gc.set_threshold(*SELDOM)
