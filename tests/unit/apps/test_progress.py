"""How far a long command is, in words that fit a line."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

from shoal.apps import cli, progress
from shoal.apps.progress import Bar, end, growing, how_far, lasting, say, tracked
from shoal.apps.recipes import shipped


class _Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal
        self.written = threading.Event()

    def write(self, text: str, /) -> int:
        count = super().write(text)
        self.written.set()
        return count

    def isatty(self) -> bool:
        return self._terminal


def _followed(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, each_s: float) -> str:
    """Ten things, each of which takes so long by the clock that is looked at."""
    screen, clock = _Screen(terminal), [0.0]
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(progress, "monotonic", lambda: clock[0])
    seen = []
    for item in tracked(range(10), "seeds"):
        seen.append(item)
        clock[0] += each_s
    assert seen == list(range(10))
    return screen.getvalue()


def test_rate_and_time_left() -> None:
    assert how_far(25, 100, 50, "seeds") == "[######..................] 25 of 100 seeds, 0.5/s, 2:30 left"
    assert how_far(2000, 4000, 1, "entries").endswith("2,000 of 4,000 entries, 2,000/s, 0:01 left")
    assert how_far(0, 5, 12, "kills") == "[........................] 0 of 5 kills, 0:12 so far"


def test_bytes_and_seconds_have_the_unit_that_fits() -> None:
    assert how_far(2e5, 4e5, 1, "bytes").endswith("] 200.0 kB of 400.0 kB, 200.0 kB/s, 0:01 left")
    assert how_far(1e9, 4e9, 10, "bytes").endswith("] 1.0 GB of 4.0 GB, 100.0 MB/s, 0:30 left")
    assert how_far(30, 90, 30, "seconds").endswith("] 0:30 of 1:30, 1:00 left")


def test_a_terminal_has_one_line_which_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _followed(monkeypatch, terminal=True, each_s=2.0)
    assert "\n" not in told and told.endswith("\r\x1b[K") and "9 of 10 seeds, 0.5/s, 0:02 left" in told


def test_a_pipe_gets_plain_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _followed(monkeypatch, terminal=False, each_s=6.0).splitlines()
    assert len(lines) == 5 and all(line.isprintable() for line in lines)


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_said_of_what_is_soon_done(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    assert _followed(monkeypatch, terminal=terminal, each_s=0.01) == ""


def test_no_color_is_plain_in_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lines = _followed(monkeypatch, terminal=True, each_s=6.0).splitlines()
    assert len(lines) == 5 and all(line.isprintable() for line in lines)


def _terminal(monkeypatch: pytest.MonkeyPatch) -> _Screen:
    screen = _Screen(True)
    monkeypatch.setattr("sys.stderr", screen)
    return screen


def _drawn(screen: _Screen) -> str:
    """What stands in the line now."""
    return screen.getvalue().rpartition("\r\x1b[K")[2]


def test_a_line_takes_the_place_of_a_bar(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _terminal(monkeypatch)
    say("first")
    assert screen.getvalue() == "first\n"
    pipe = io.StringIO()
    with Bar() as bar:
        bar.at(1, 3, "kills")
        assert _drawn(screen).startswith("[########................] 1 of 3 kills, ")
        say("kill 3", pipe)
        assert pipe.getvalue() == "kill 3\n" and _drawn(screen) == ""


def test_without_a_known_end_it_says_what_is_done_and_since_when(
    at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = _terminal(monkeypatch)
    with Bar("preparing") as bar:
        bar.at(0, math.inf, "bytes")
        assert _drawn(screen) == "preparing, 0:00 so far"
        bar.at(5000, math.inf, "bytes")
        assert re.fullmatch(r"5\.0 kB, \S+ .B/s, 0:00 so far", _drawn(screen))
    with Bar() as bar:
        say("cutting one host off")
        bar.at(0, math.inf, "")
        assert _drawn(screen) == "cutting one host off, 0:00 so far"


def test_a_step_is_as_far_as_the_bar_within_it(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _terminal(monkeypatch)
    presets, steps = tracked(["one", "other"], "presets"), tracked(range(4), "steps")
    next(presets)
    next(presets)
    for _ in range(3):
        next(steps)
    assert re.fullmatch(r"\[#{18}\.{6}\] 1 of 2 presets, \S+/s, \S+ left \(2 of 4 steps\)", _drawn(screen))
    steps.close()
    again = tracked(range(4), "steps")
    next(again)
    assert _drawn(screen).startswith(
        "[##################......] 1 of 2 presets, "
    )  # It does not go backwards.
    again.close()
    presets.close()
    only, steps = tracked(["one"], "presets"), tracked(range(4), "steps")
    next(only)
    next(steps)
    next(steps)
    assert _drawn(screen).startswith("[######..................] 1 of 4 steps, ")
    steps.close()
    only.close()


def test_a_bar_moves_by_itself(at_once: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    screen = _terminal(monkeypatch)
    (tmp_path / "half").write_bytes(bytes(500))
    for bar, words in (
        (lasting(1e-9), "[########################] 0:00 of 0:00, "),
        (growing(tmp_path, 1000), "[############............] 500 B of 1.0 kB, "),
    ):
        screen.written.clear()
        with bar:
            assert screen.written.wait(5.0)
            assert _drawn(screen).startswith(words)


def test_nothing_is_drawn_after_the_end(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _terminal(monkeypatch)
    left_open = tracked(range(3), "cells")
    next(left_open)
    end()
    told = screen.getvalue()
    assert told.endswith("\r\x1b[K")
    next(left_open)
    assert screen.getvalue() == told
    left_open.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A bar is shown from the first moment on; what commands set for their whole process is set back."""
    levels = {name: logging.getLogger(name).level for name in ("asyncio", "shoal")}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "REDRAWN_S", 0.0)
    monkeypatch.delenv("NO_COLOR", raising=False)
    yield
    torch.set_num_threads(threads)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


COMMANDS = {
    "sim fleet campus --nodes 2 --rounds 2": "rounds",
    "sim fleet campus --nodes 4 --regions --time 12h": "virtual seconds",
    "sim scaling --nodes 1,2": "rounds",
    "sim soak --hours 1.1 --nodes 1": "virtual hours",
    "bench codec --params 1000": "codecs",
    "bench sim --seeds 2": "seeds",
    "bench converge --small --steps 2 --workers 2 --preset local-sgd": "steps",
    "bench churn --nodes 4 --rounds 4": "runs",
    "bench signatures --times 3": "kinds",
    "bench masks --nodes 3 --dropouts 0 --parameters 100": "nodes",
    "bench fold --params 1000 --updates 2": "runs",
    "bench digest --params 10000 --nodes 3 --nodes 4": "fleets",
    "bench attacks --nodes 4 --rounds 2": "rounds",
    "compare digits.yaml digits.yaml --fleet campus --nodes 2 --time 20s --no-plot": "recipes",
}


@pytest.mark.parametrize(
    ("words", "what", "terminal"),
    [
        *((*each, True) for each in COMMANDS.items()),
        *((*each, False) for each in islice(COMMANDS.items(), 2)),
    ],
)
def test_long_commands_have_a_bar_in_a_terminal_alone(
    words: str,
    what: str,
    terminal: bool,
    at_once: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = _Screen(terminal)
    monkeypatch.setattr("sys.stderr", screen)
    recipe = str(shipped()["digits"])
    with pytest.raises(SystemExit) as ended:
        cli.main([recipe if word == "digits.yaml" else word for word in [*words.split(), "--json"]])
    assert not ended.value.code, screen.getvalue()
    json.loads(capsys.readouterr().out.splitlines()[-1])
    told = screen.getvalue()
    if not terminal:
        assert "\x1b" not in told and "\r" not in told
        return
    assert re.search(rf"\r\x1b\[K\[#*\.*\] [\d,]+ of [\d,]+ {what}, \S+/s, [\d:]+ left", told), told
