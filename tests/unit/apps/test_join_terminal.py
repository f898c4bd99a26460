"""What a volunteer with a terminal sees and is asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .runs_to_join import tiny_run

pty = pytest.importorskip("pty")


def _converse(arguments: list[str], answer: bytes) -> tuple[int, str]:
    """Run `shoal` on a terminal of its own and answer its first question; its status and its words."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["OMP_NUM_THREADS"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "shoal.apps.cli", *arguments])
    said, answered = b"", False
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the terminal is closed
            break
        if not piece:
            break
        said += piece
        if not answered and b"Take part? [Y/n]" in said:
            os.write(terminal, answer + b"\n")
            answered = True
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), said.decode(errors="replace")


def test_a_volunteer_may_say_no_or_yes(tmp_path: Path) -> None:
    with tiny_run(tmp_path) as (found, ticket):
        options = ["join", ticket, "--home", str(tmp_path / "cy"), "--device", "cpu"]
        status, said = _converse(options, b"n")
        assert status == 0, said
        assert "none of the organiser's" in said and "ended: the volunteer declined" in said
        with found.client() as api:
            assert api.run(api.runs()[0].run).round == 0, "nothing was trained"
        status, said = _converse(options, b"y")
        assert status == 0, said
        assert "ended: 3 rounds done" in said
