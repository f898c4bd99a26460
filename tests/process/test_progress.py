"""How far a long command is, as a person at a terminal sees it, and as a pipe gets it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SHOAL = [sys.executable, "-m", "shoal.apps.cli"]
ERASE = "\r\x1b[K"
LONG_ENOUGH = ["bench", "signatures", "--times", "2500", "--json"]
KNOWN = r"\[#*\.*\] \d of 2 kinds, (\S+/s, \S+ left|\S+ so far)( \([\d,]+ of 2,500 signatures\))?"


def in_terminal(words: Sequence[str], **environment: str) -> tuple[str, str]:
    """What is on stdout, and what came on a terminal for stderr."""
    told, slave = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(
        [*SHOAL, *words],
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
        env={**plain, "COLUMNS": "120", **environment},
    ) as process:
        os.close(slave)
        screen = b""
        try:
            while piece := os.read(told, 65536):
                screen += piece
        except OSError:  # Linux says so when the last one has closed the terminal.
            pass
        os.close(told)
        assert process.stdout is not None
        answer = process.stdout.read()
    assert process.returncode == 0, screen
    return answer, screen.decode()


def test_a_terminal_has_a_bar_and_stdout_the_answer_alone() -> None:
    answer, screen = in_terminal(LONG_ENOUGH)
    assert answer.count("\n") == 1 and json.loads(answer)["hybrid"]["signature_bytes"]
    drawn = [part.splitlines()[0] for part in screen.split(ERASE) if part.startswith("[")]
    assert len(drawn) > 2 and all(re.fullmatch(KNOWN, one) for one in drawn), drawn
    assert screen.endswith(ERASE), "nothing is left of it at the end"


def test_no_color_is_plain_in_a_terminal_too() -> None:
    answer, screen = in_terminal(LONG_ENOUGH, NO_COLOR="1")
    json.loads(answer)
    assert "\x1b" not in screen and "made and checked" in screen


def test_a_pipe_gets_lines() -> None:
    done = subprocess.run([*SHOAL, *LONG_ENOUGH], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and json.loads(done.stdout)
    assert all(line.isprintable() for line in done.stderr.splitlines()) and "made and checked" in done.stderr


@pytest.mark.parametrize("timeout", [[], ["--timeout", "90s"]])
def test_the_lab_says_what_it_is_at(tmp_path: Path, timeout: list[str]) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("hosts: [{name: a, count: 3, up: 50 Mbit/s, down: 50 Mbit/s, latency: 2 ms}]")
    words = ["lab", "run", str(fleet), *timeout, "--json", "--", "sh", "-c", "sleep 2; echo here"]
    answer, screen = in_terminal(words)
    assert len(json.loads(answer)["hosts"]) == 3
    assert re.search(r"building and measuring a network of 3 hosts, 0:\d\d so far", screen)
    assert re.search(r"\] 0:0\d of 1:30, 1:\d\d left" if timeout else "3 programs at work, 0:0", screen)
    assert len(re.findall(r"\[a-\d\] here\r\n", screen)) == 3
