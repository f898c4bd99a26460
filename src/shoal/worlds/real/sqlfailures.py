"""What databases say when they fail, as errors that people can act on.

In flow the drivers' exceptions; out flow `ShoalError`s: a full disk (or a file that may not grow) is SH-DISK-01,
damage is SH-LOG-01 while reading and SH-LOG-04 while opening, everything else SH-LOG-04. Invariant: no message holds
a password.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from shoal.base.errors import ShoalError
from shoal.base.logstore import MEND_STORE
from shoal.worlds.real.disk import FileDisk

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_PRIMARY = 0xFF  # SQLite's extended codes hold the plain one in their low byte.
_POSTGRES_FULL, _POSTGRES_DAMAGE = "53100", ("XX001", "XX002")
_GROWTH_BYTES = 4 << 20
"""No entry makes the file grow by more."""


@contextmanager
def explain(name: str, *, opening: bool = False) -> Iterator[None]:
    """Turn a driver's failure into ours. `IntegrityError` passes: the caller knows what it means."""
    try:
        yield
    except IntegrityError:
        raise
    except (SQLAlchemyError, UnicodeDecodeError) as error:
        # The second: in a damaged file not even the database's own words need be text.
        raise _explained(name, error, opening) from error
    except OSError as error:
        raise _closed(name, error.strerror or str(error)) from error


def damaged(name: str, what: str) -> ShoalError:
    return ShoalError(
        "SH-LOG-01",
        f"{what} ({name})",
        MEND_STORE,
    )


def _explained(name: str, error: SQLAlchemyError | UnicodeDecodeError, opening: bool) -> ShoalError:
    cause = getattr(error, "orig", None) or error
    # The first line only: the rest repeats the statement and its values.
    words = str(cause).strip().partition("\n")[0]
    if _is_full(cause) or (_is_failed_write(cause) and _may_not_grow(name)):
        return ShoalError(
            "SH-DISK-01", f"no room for the log in {name}: {words}", "free some space on the store's disk"
        )
    if _is_damage(cause):
        if not opening:
            return damaged(name, f"the log store is damaged: {words}")
        return ShoalError("SH-LOG-04", f"{name} is damaged: {words}", MEND_STORE)
    return _closed(name, words)


def _is_full(cause: BaseException) -> bool:
    if isinstance(cause, sqlite3.Error):
        return _sqlite_code(cause) == sqlite3.SQLITE_FULL
    return getattr(cause, "sqlstate", None) == _POSTGRES_FULL


def _is_failed_write(cause: BaseException) -> bool:
    return getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_WRITE


def _may_not_grow(name: str) -> bool:
    """True if the system lets no file beside the store become a little larger than it. SQLite calls that an I/O error
    like any other, so this tries it, with a byte and a gap before it."""
    store = Path(make_url(name).database or "")
    probe = f"{store.name}.probe"
    try:
        folder, size_bytes = FileDisk(store.parent), store.stat().st_size
        try:
            folder.write_at(probe, size_bytes + _GROWTH_BYTES, b"\0")
        finally:
            folder.remove(probe)
    except ShoalError as error:
        return error.code == "SH-DISK-01"
    except OSError:
        return False
    return False


def _is_damage(cause: BaseException) -> bool:
    if isinstance(cause, sqlite3.Error):
        # Text that is not UTF-8 any more has no code of its own.
        return _sqlite_code(cause) in _DAMAGE or "decode" in str(cause)
    return isinstance(cause, UnicodeDecodeError) or getattr(cause, "sqlstate", None) in _POSTGRES_DAMAGE


def _sqlite_code(cause: sqlite3.Error) -> int | None:
    code = getattr(cause, "sqlite_errorcode", None)
    return None if code is None else code & _PRIMARY


def _closed(name: str, words: str) -> ShoalError:
    return ShoalError(
        "SH-LOG-04",
        f"the log store {name} cannot be used: {words}",
        "check that its path or server is right, is yours to use, and that nothing else holds it",
    )
