"""Log records as lines on stderr, for coordinators and nodes alike.

In flow records with fields; out flow lines. Invariant: nothing that a peer chose is printed as it came.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from shoal.apps.printable import printable

# What every record has; whatever else it has was given by the caller.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class FieldFormatter(logging.Formatter):
    """One line: time, level, event, then key=value."""

    def format(self, record: logging.LogRecord) -> str:
        given = [(key, value) for key, value in vars(record).items() if key not in _STANDARD]
        head = f"{self.formatTime(record)} {record.levelname.lower()} {record.getMessage()}"
        line = " ".join([head, *(f"{key}={_shown(value)}" for key, value in given)])
        if not record.exc_info:
            return line
        trace = self.formatException(record.exc_info).splitlines()
        return "\n".join([line, *(printable(part, limit=1000) for part in trace)])


def _shown(value: object) -> str:
    text = printable(str(value), limit=1000)
    return f'"{text}"' if " " in text or not text else text


class _Stderr(logging.StreamHandler[TextIO]):
    """Whatever stderr is at the time: a live screen puts its own in place, so that lines do not run through it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_to_stderr(level: str) -> None:
    """Say from now on what is of this level or above; `SHOAL_LOG` may ask for more or less."""
    handler = _Stderr(sys.stderr)
    handler.setFormatter(FieldFormatter())
    root = logging.getLogger("shoal")
    root.handlers = [handler]
    root.setLevel(os.environ.get("SHOAL_LOG", level).upper())
