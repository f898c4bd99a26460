"""Named points at which tests kill or stop a real process.

In flow a point's name and, once, the environment variable SHOAL_FAILPOINT, `point:nth:KILL` or
`point:nth:STOP`; out flows a signal to this process the nth time the point is reached. Invariant: without
the variable nothing happens.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from functools import cache

VARIABLE = "SHOAL_FAILPOINT"
_SIGNALS = {"KILL": "SIGKILL", "STOP": "SIGSTOP"}


def _nothing(point: str) -> None:
    return None


def parse(text: str) -> Callable[[str], None]:
    """What to do at every point under this setting. Raises `ValueError` where it is not a setting."""
    if not text:
        return _nothing
    point, _, rest = text.partition(":")
    nth, _, action = rest.partition(":")
    if not point or not nth.isascii() or not nth.isdigit() or int(nth) < 1 or action not in _SIGNALS:
        raise ValueError(f"{VARIABLE}={text!r} is not point:nth:KILL or point:nth:STOP")
    number = getattr(signal, _SIGNALS[action])
    times = itertools.count(1)  # next() on it is atomic, so points may be reached from any thread
    last = int(nth)

    def at(reached_point: str) -> None:
        if reached_point == point and next(times) == last:
            os.kill(os.getpid(), number)

    return at


def reached(point: str) -> None:
    """Mark a point as reached."""
    _setting()(point)


@cache
def _setting() -> Callable[[str], None]:
    """Read once, when the first point is reached, so that a point costs two short calls in production."""
    return parse(os.environ.get(VARIABLE, ""))
