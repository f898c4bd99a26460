"""How far a long command is: a bar with its rate and the time left.

In flows how much is done, of how much; out flow words on stderr: one line that is drawn again in a terminal, a line
every ten seconds elsewhere, and where NO_COLOR asks for plain text. Invariant: stdout holds the answer alone, and
nothing is said of what is done within a second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TextIO, TypeVar

from shoal.base.units import show_duration

T = TypeVar("T")
QUIET_S, REDRAWN_S, SAID_S = 1.0, 0.25, 10.0
BAR_WIDTH = 24
_ERASE = "\r\x1b[K"


class Bar:
    """Use it in a `with` statement; `at` as often as there is news. One is shown at a time."""

    def __init__(self, *, plain: bool = True) -> None:
        """Without `plain` it is for a terminal alone: the command has lines of its own for elsewhere."""
        self._terminal, self._plain = _in_terminal(), plain
        self._began = self._due = 0.0
        self._drawn = False

    def __enter__(self) -> Bar:
        self._began = monotonic()
        self._due = self._began + QUIET_S
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn and self._terminal:
            print(_ERASE, end="", file=sys.stderr, flush=True)

    def at(self, done: float, total: float, what: str) -> None:
        """So much is done. Nothing is shown of a total that is not known."""
        now = monotonic()
        if now < self._due or not (done > 0 and total < float("inf")) or not (self._terminal or self._plain):
            return
        text = how_far(done, total, now - self._began, what)
        if self._terminal:
            print(f"{_ERASE}{text}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)
        self._drawn, self._due = True, now + (REDRAWN_S if self._terminal else SAID_S)


def tracked(items: Iterable[T], total: int, what: str, *, plain: bool = True) -> Iterator[T]:
    """The items, with words on how many of them are done."""
    with Bar(plain=plain) as bar:
        for done, item in enumerate(items):
            bar.at(done, total, what)
            yield item


def say(text: str, file: TextIO | None = None) -> None:
    """A line for people, on stderr unless told otherwise; in a terminal it takes the place of a bar."""
    to = file or sys.stderr
    print(f"{_ERASE}{text}" if to.isatty() and _in_terminal() else text, file=to, flush=True)


def how_far(done: float, total: float, elapsed_s: float, what: str) -> str:
    """In one line: a bar, how many of how many, how many a second, and how long the rest will take at that rate."""
    filled = int(BAR_WIDTH * min(1.0, done / max(total, 1e-9)))
    rate = done / max(elapsed_s, 1e-9)
    pace = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
    left = show_duration(max(0, total - done) / rate)
    bar = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}]"
    return f"{bar} {done:,.0f} of {total:,.0f} {what}, {pace}, {left} left"


def _in_terminal() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
