"""The node's key file: made once, then only read.

In flows a path; out flows the node's `Identity`. Invariant: the secret is never on disk in a file that
others may read, and two processes that start at once end up with the same key.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.wire.identity import Identity
from shoal.worlds.real.sums import check_sum, remove_sum, write_sum

_FORM = re.compile(rb"[0-9a-f]{64}\n?")


def load_or_create_identity(path: Path) -> Identity:
    """The identity kept in `path`, generated on first use. Raises `ShoalError` SH-KEY-01."""
    try:
        if not path.exists():
            remove_sum(path)
            _create(path)
            write_sum(path)
        check_sum(path)
        return _load(path)
    except OSError as error:
        raise ShoalError(
            "SH-KEY-01",
            f"{path}: {error.strerror or error}",
            "make the file and its folder accessible to you, or name another key file",
        ) from error


def _load(path: Path) -> Identity:
    with open(path, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        content = file.read(1024)
    if os.name == "posix" and mode & 0o077:
        raise ShoalError(
            "SH-KEY-01",
            f"{path} has mode {mode:04o}: others can read or change this node's key",
            f"run: chmod 600 {path}; if others may have read it, delete it to become a new node",
        )
    if not _FORM.fullmatch(content):
        raise ShoalError(
            "SH-KEY-01",
            f"{path} does not hold 64 hexadecimal digits",
            "restore it from a backup, or delete it to become a new node",
        )
    return Identity(bytes.fromhex(content.decode()))


def _create(path: Path) -> None:
    """Write a whole key beside `path`, then link it there; whoever links first wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            os.write(handle, Identity.generate().secret.hex().encode() + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
