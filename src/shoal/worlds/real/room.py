"""Room on a disk for a file that is about to be written, taken at once.

In flow an open file and a size; out flows room. Invariant: what the file holds, and how long it is, stay as they are;
where the system cannot be told nothing happens.
"""

from __future__ import annotations

import ctypes
import os
import sys

_KEEP_SIZE = 1


def take_room(handle: int, size_bytes: int) -> None:
    """For the file's first `size_bytes`. Raises `OSError`: the disk is full, or it is of a kind that cannot do this.

    Python's own `posix_fallocate` lengthens the file, and writes to every block of it where the disk cannot do this.
    """
    if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32:
        return
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(handle, _KEEP_SIZE, 0, size_bytes):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
