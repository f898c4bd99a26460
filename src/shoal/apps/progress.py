"""How far a long command is: a bar with its rate and the time left.

In flows how much is done, of how much; out flow words on stderr: one line that is drawn again in a terminal, a line
every ten seconds elsewhere, and where NO_COLOR asks for plain text. Where nobody knows how long something takes, the
line says what is done and since when. Invariant: stdout holds the answer alone, and nothing is said of what is done
within a second.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from time import monotonic, time
from typing import TextIO, TypeVar, overload

from shoal.base.units import show_bytes, show_duration

T = TypeVar("T")
QUIET_S, REDRAWN_S, SAID_S = 1.0, 0.25, 10.0
BAR_WIDTH = 24
BYTES, SECONDS = "bytes", "seconds"
"""What is counted in these is shown with the unit that fits."""
_ERASE = "\r\x1b[K"
Far = tuple[float, float, str]
"""How much is done, of how much, of what."""


class Bar:
    """Use it in a `with` statement; `at` as often as there is news. Of bars within bars the outermost that knows its
    end is shown, and those within it say how far its current step is."""

    def __init__(self, doing: str = "", *, look: Callable[[], Far] | None = None) -> None:
        """What is being done, for as long as nothing is known of its end. With a `look` nobody needs to call `at`."""
        self._doing, self._look = doing, look
        self._done, self._total, self._what = 0.0, math.inf, ""
        self._part = self._began = 0.0
        self.stepwise = False

    def __enter__(self) -> Bar:
        self._began = monotonic()
        _line.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _line.remove(self)

    def at(self, done: float, total: float, what: str) -> None:
        """So much is done."""
        with _line.lock:
            self._done, self._total, self._what, self._part = done, total, what, 0.0
        _line.draw()

    def look(self) -> None:
        if self._look is not None:
            self._done, self._total, self._what = self._look()

    @property
    def total(self) -> float | None:
        """How much there is to do, where that is known."""
        return self._total if 0 < self._total < math.inf else None

    def share(self, within: float) -> float:
        """The part that is done, with the share of its step that those `within` have done."""
        return min(1.0, self._so_far(within) / self._total)

    def words(self, within: float, now: float) -> str:
        return how_far(self._so_far(within), self._total, now - self._began, self._what)

    def count(self) -> str:
        return _amount(self._done, self._total, self._what)

    def waiting(self, now: float, said: str, said_at: float) -> str:
        """What there is to say without a known end: what is done, or else what was said last, and since when."""
        since = self._began if self._doing or not said else said_at
        words = [self._doing or said or "at work"]
        if self._done > 0:
            rate = self._done / max(now - self._began, 1e-9)
            words = [_amount(self._done, math.inf, self._what), _pace(rate, self._what)]
        return ", ".join([*words, f"{show_duration(now - since)} so far"])

    def _so_far(self, within: float) -> float:
        if self.stepwise:  # A step may have several bars after one another; it never goes backwards.
            self._part = max(self._part, within)
        return self._done + self._part


class _Line:
    """The one line on stderr, and the bars that are open, outermost first. A thread draws while a step takes long."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._open: list[Bar] = []
        self._due = 0.0
        self._drawn = False
        self._said, self._said_at = "", 0.0
        self._ended = threading.Event()
        self._ticking: threading.Thread | None = None

    def add(self, bar: Bar) -> None:
        with self.lock:
            self._open.append(bar)
            if len(self._open) > 1:
                return
            self._due, self._said = monotonic() + QUIET_S, ""
            self._ended = threading.Event()
            self._ticking = threading.Thread(target=self._tick, args=(self._ended,), daemon=True)
            self._ticking.start()

    def remove(self, bar: Bar) -> None:
        with self.lock:
            if bar in self._open:
                self._open.remove(bar)
            self._erase()
            if self._open:
                return
            self._ended.set()
            ticking, self._ticking = self._ticking, None
        if ticking not in (
            None,
            threading.current_thread(),
        ):  # A bar that nobody closed may be collected there.
            ticking.join()

    def end(self) -> None:
        for bar in [*self._open]:
            self.remove(bar)

    def say(self, text: str, to: TextIO) -> None:
        with self.lock:
            self._erase()
            print(text, file=to, flush=True)
            if to is sys.stderr and text:
                self._said, self._said_at = text.splitlines()[-1], monotonic()
            if not _in_terminal():
                self._due = max(self._due, monotonic() + SAID_S)

    def draw(self) -> None:
        with self.lock:
            now = monotonic()
            if not self._open or now < self._due:
                return
            # Whoever read along may have gone away, or closed it: no command fails for its bar.
            with contextlib.suppress(OSError, ValueError):
                text, terminal = self._text(now), _in_terminal()
                if terminal:
                    columns = shutil.get_terminal_size().columns
                    print(f"{_ERASE}{text[: columns - 1]}", end="", file=sys.stderr, flush=True)
                else:
                    print(text, file=sys.stderr, flush=True)
                self._drawn, self._due = True, now + (REDRAWN_S if terminal else SAID_S)

    def _text(self, now: float) -> str:
        for bar in self._open:
            bar.look()
        known = [bar for bar in self._open if bar.total is not None]
        if not known:
            return self._open[-1].waiting(now, self._said, self._said_at)
        known = [bar for bar in known if bar.total != 1] or known[-1:]  # "0 of 1" says nothing.
        within = 0.0
        for bar in reversed(known[1:]):
            within = bar.share(within)
        inner = f" ({known[-1].count()})" if len(known) > 1 else ""
        return known[0].words(within, now) + inner

    def _erase(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._drawn and _in_terminal():
                print(_ERASE, end="", file=sys.stderr, flush=True)
        self._drawn = False

    def _tick(self, ended: threading.Event) -> None:
        while not ended.wait(max(REDRAWN_S, 0.05)):
            self.draw()


_line = _Line()


@overload
def tracked(items: Collection[T], what: str) -> Iterator[T]: ...
@overload
def tracked(items: Iterable[T], what: str, total: int) -> Iterator[T]: ...
def tracked(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items, with words on how many of them are done."""
    count = total if total is not None else len(items)  # type: ignore[arg-type]
    with Bar() as bar:
        bar.stepwise = True
        for done, item in enumerate(items):
            bar.at(done, count, what)
            yield item


def lasting(seconds: float) -> Bar:
    """For what takes as long as it is meant to."""
    began = monotonic()
    return Bar(look=lambda: (min(monotonic() - began, seconds), seconds, SECONDS))


def growing(folder: Path, total_bytes: float) -> Bar:
    """For a folder into which somebody writes so much from now on."""
    began = time() - 1  # File systems have coarse clocks.

    def look() -> Far:
        done = 0
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):  # What is counted may be renamed meanwhile.
                found = path.stat()
                done += found.st_size if found.st_mtime >= began and path.is_file() else 0
        return min(done, total_bytes), total_bytes, BYTES

    return Bar(look=look)


def say(text: str, file: TextIO | None = None) -> None:
    """A line for people, on stderr unless told otherwise; in a terminal it takes the place of a bar."""
    _line.say(text, file or sys.stderr)


def end() -> None:
    """No bar any more: something else is to be said, and whoever had one open is not coming back."""
    _line.end()


def how_far(done: float, total: float, elapsed_s: float, what: str) -> str:
    """In one line: a bar, how many of how many, how many a second, and how long the rest will take at that rate."""
    filled = int(BAR_WIDTH * min(1.0, done / max(total, 1e-9)))
    words = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {_amount(done, total, what)}"
    if done <= 0:
        return f"{words}, {show_duration(elapsed_s)} so far"
    rate = done / max(elapsed_s, 1e-9)
    pace = "" if what == SECONDS else f"{_pace(rate, what)}, "
    return f"{words}, {pace}{show_duration(max(0, total - done) / rate)} left"


def _amount(done: float, total: float, what: str) -> str:
    if what in (BYTES, SECONDS):
        show = show_bytes if what == BYTES else show_duration
        return f"{show(done)} of {show(total)}" if total < math.inf else show(done)
    return f"{int(done):,} of {total:,.0f} {what}" if total < math.inf else f"{int(done):,} {what}"


def _pace(rate: float, what: str) -> str:
    if what == BYTES:
        return f"{show_bytes(rate)}/s"
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


def _in_terminal() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
