"""How far a long command is, in words that fit a line."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from itertools import islice

import pytest
import torch

from shoal.apps import cli, progress
from shoal.apps.progress import Bar, how_far, say, tracked
from shoal.apps.recipes import shipped


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


def test_no_color_is_plain_in_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lines = _followed(monkeypatch, terminal=True, each_s=6.0).splitlines()
    assert len(lines) == 5 and all(line.isprintable() for line in lines)


@pytest.mark.parametrize(("terminal", "told"), [(True, "\r\x1b[Kkill 3\n"), (False, "kill 3\n")])
def test_a_line_takes_the_place_of_a_bar(monkeypatch: pytest.MonkeyPatch, terminal: bool, told: str) -> None:
    screen = _Screen(terminal)
    monkeypatch.setattr("sys.stderr", screen)
    say("kill 3")
    assert screen.getvalue() == told
    pipe = io.StringIO()
    say("kill 3", pipe)
    assert pipe.getvalue() == "kill 3\n"


def test_no_bar_of_what_has_no_known_end(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _Screen(True)
    monkeypatch.setattr("sys.stderr", screen)
    with Bar() as bar:
        bar.at(5, float("inf"), "MB")
        bar.at(0, 10, "MB")
    assert screen.getvalue() == ""


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
    "compare digits.yaml digits.yaml --fleet campus --nodes 2 --time 20s --no-plot": "virtual seconds",
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
