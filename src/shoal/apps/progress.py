"""How far a long command is: a bar with its rate and the time left.

In flow things, one after the other, and how many there will be; out flow the same things, and words on stderr: one
line that is drawn again in a terminal, a line every ten seconds elsewhere. Invariant: stdout is never touched, and
nothing is said of what is done within a second.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TypeVar

from shoal.base.units import show_duration

T = TypeVar("T")
QUIET_S, REDRAWN_S, SAID_S = 1.0, 0.25, 10.0
BAR_WIDTH = 24
_ERASE = "\r\x1b[K"


def tracked(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items, with words on how many of them are done."""
    terminal = sys.stderr.isatty()
    began = monotonic()
    due = began + QUIET_S
    drawn = False
    try:
        for done, item in enumerate(items):
            if done and (now := monotonic()) >= due:
                text = how_far(done, total, now - began, what)
                print(
                    f"{_ERASE}{text}" if terminal else text,
                    end="" if terminal else "\n",
                    file=sys.stderr,
                    flush=True,
                )
                drawn, due = True, now + (REDRAWN_S if terminal else SAID_S)
            yield item
    finally:
        if drawn and terminal:
            print(_ERASE, end="", file=sys.stderr, flush=True)


def how_far(done: int, total: int, elapsed_s: float, what: str) -> str:
    """In one line: a bar, how many of how many, how many a second, and how long the rest will take at that rate."""
    filled = BAR_WIDTH * done // max(1, total)
    rate = done / elapsed_s
    pace = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
    left = show_duration(max(0, total - done) / rate)
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done:,} of {total:,} {what}, {pace}, {left} left"
