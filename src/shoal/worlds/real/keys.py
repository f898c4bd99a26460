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

import msgspec

from shoal.base.errors import ShoalError
from shoal.runlog.keys import MAX_LINE, rotate
from shoal.wire.identity import Identity
from shoal.worlds.real.sums import check_sum, remove_sum, write_sum

MAX_LINE_BYTES = 1 << 20
_FORM = re.compile(rb"[0-9a-f]{64}\n?")


def load_or_create_identity(path: Path) -> Identity:
    """The identity kept in `path`, generated on first use. Raises `ShoalError` SH-KEY-01."""
    try:
        if not path.exists():
            remove_sum(path)
            _create(path)
            write_sum(path)
        check_sum(path)
        return _followed(_load(path), line_path(path))
    except OSError as error:
        raise ShoalError(
            "SH-KEY-01",
            f"{path}: {error.strerror or error}",
            "make the file and its folder accessible to you, or name another key file",
        ) from error


def _read_private(path: Path, most_bytes: int) -> bytes:
    """What a file holds that nobody else may read. Raises SH-KEY-01 if others may."""
    with open(path, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        content = file.read(most_bytes)
    if os.name == "posix" and mode & 0o077:
        raise ShoalError(
            "SH-KEY-01",
            f"{path} has mode {mode:04o}: others can read or change this node's key",
            f"run: chmod 600 {path}; if others may have read it, delete it to become a new node",
        )
    return content


def _load(path: Path) -> Identity:
    content = _read_private(path, 1024)
    if not _FORM.fullmatch(content):
        raise ShoalError(
            "SH-KEY-01",
            f"{path} does not hold 64 hexadecimal digits",
            "restore it from a backup, or delete it to become a new node",
        )
    return Identity(bytes.fromhex(content.decode()))


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key that speaks now, and the words by which each key named the next."""

    secret: str
    line: tuple[str, ...]


def line_path(path: Path) -> Path:
    """Where the keys lie that follow the one in `path`."""
    return path.with_name(path.name + ".line")


def _followed(first: Identity, path: Path) -> Identity:
    """The identity after all changes of its key. Raises SH-KEY-01 if the file is no such line."""
    if not path.exists():
        return first
    check_sum(path)
    try:
        kept = msgspec.json.decode(_read_private(path, MAX_LINE_BYTES), type=_Line)
        secret, line = bytes.fromhex(kept.secret), tuple(map(bytes.fromhex, kept.line))
        return Identity(secret, first=first, line=line)
    except (msgspec.DecodeError, ValueError):
        raise ShoalError(
            "SH-KEY-01", f"{path} does not hold a line of keys", "restore it from a backup"
        ) from None


def rotate_identity(path: Path, *, revokes: bool) -> Identity:
    """Make a new key speak for the identity kept in `path`, durably; it. Raises SH-KEY-01."""
    old = load_or_create_identity(path)
    if len(old.line) >= MAX_LINE:
        raise ShoalError(
            "SH-KEY-01",
            f"the key in {path} has been replaced {len(old.line)} times, which is the most there is",
            "begin anew with another home, as a new node",
        )
    new, _ = rotate(old, secrets.token_bytes(32), revokes=revokes)
    kept = _Line(secret=new.secret.hex(), line=tuple(one.hex() for one in new.line))
    at = line_path(path)
    temporary = at.with_name(f"{at.name}.{secrets.token_hex(8)}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(kept) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        remove_sum(at)
        os.replace(temporary, at)
        write_sum(at)
    except OSError as error:
        raise ShoalError("SH-KEY-01", f"{at}: {error.strerror or error}", "make it writable") from error
    return new


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
