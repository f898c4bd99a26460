"""Checksums beside the small files that nothing else vouches for: keys and tokens.

In flow paths; out flow files `NAME.sum`, or SH-KEY-01 for a file that is not what it was. Invariant: a file is never
without its old checksum and with its new content, or the reverse, but for the moment in which it has none.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.base.rot import SUFFIX, checksum, is_sound


def sum_path(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def write_sum(path: Path) -> None:
    """Write down what the file is now. Raises `OSError`."""
    handle = os.open(sum_path(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(checksum(path.read_bytes()))
        file.flush()
        os.fsync(file.fileno())


def remove_sum(path: Path) -> None:
    """Before the file is replaced."""
    sum_path(path).unlink(missing_ok=True)


def check_sum(path: Path) -> None:
    """Raises SH-KEY-01 if the file is not what it was; one without a checksum is taken as it is."""
    with contextlib.suppress(OSError):
        known = sum_path(path).read_bytes()
        if not is_sound(path.read_bytes(), known):
            whose = "--node --repair" if path.parent.name == "node" else "--repair"
            raise ShoalError(
                "SH-KEY-01",
                f"{path} is damaged: it is not what its checksum says",
                f"run: shoal ckpt verify {whose}; if you changed it yourself, remove {sum_path(path).name}",
            )
