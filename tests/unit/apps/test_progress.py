"""How far a long command is, in words that fit a line."""

from __future__ import annotations

import io

import pytest

from shoal.apps import progress
from shoal.apps.progress import how_far, tracked


class _Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def _followed(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, each_s: float) -> str:
    """Ten things, each of which takes so long by the clock that is looked at."""
    screen, clock = _Screen(terminal), [0.0]
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(progress, "monotonic", lambda: clock[0])
    seen = []
    for item in tracked(range(10), 10, "seeds"):
        seen.append(item)
        clock[0] += each_s
    assert seen == list(range(10))
    return screen.getvalue()


def test_rate_and_time_left() -> None:
    assert how_far(25, 100, 50, "seeds") == "[######..................] 25 of 100 seeds, 0.5/s, 2:30 left"
    assert how_far(2000, 4000, 1, "entries").endswith("2,000 of 4,000 entries, 2,000/s, 0:01 left")


def test_a_terminal_has_one_line_which_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _followed(monkeypatch, terminal=True, each_s=2.0)
    assert "\n" not in told and told.endswith("\r\x1b[K") and "9 of 10 seeds, 0.5/s, 0:02 left" in told


def test_a_pipe_gets_plain_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _followed(monkeypatch, terminal=False, each_s=6.0).splitlines()
    assert len(lines) == 5 and all(line.isprintable() for line in lines)


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_said_of_what_is_soon_done(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    assert _followed(monkeypatch, terminal=terminal, each_s=0.01) == ""
