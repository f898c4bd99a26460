"""What a terminal, a pipe and a shell see of the commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.apps.cli import COMMANDS, LazyCommand

PATIENT_S = 120


def _commands() -> Iterator[tuple[str, Any]]:
    """Every command, whole."""
    waiting = [(name, LazyCommand(name, entry).load()) for name, entry in COMMANDS.items()]
    while waiting:
        name, command = waiting.pop()
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        waiting += [(f"{name} {part}", one) for part, one in (inner or {}).items()]


def test_every_command_answers_tools() -> None:
    without = [name for name, one in _commands() if not any("--json" in option.opts for option in one.params)]
    assert without == []


def _shoal(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from shoal.apps.cli import main; main()", *arguments]
    told = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENT_S, env={**told, **environment}, check=False
    )


SHELLS = {
    "bash": {"COMP_WORDS": "shoal run re", "COMP_CWORD": "2"},
    "zsh": {"_TYPER_COMPLETE_ARGS": "shoal run re"},
    "fish": {"_TYPER_COMPLETE_ARGS": "shoal run re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_of_groups(shell: str) -> None:
    done = _shoal(_SHOAL_COMPLETE=f"complete_{shell}", **SHELLS[shell])
    assert set(re.findall(r"\bre(?:sume|wind)\b", done.stdout)) == {"resume", "rewind"}, done


def test_a_shell_completes_options() -> None:
    asked = {"COMP_WORDS": "shoal bench coordinator --so", "COMP_CWORD": "3"}
    assert "--sockets" in _shoal(_SHOAL_COMPLETE="complete_bash", **asked).stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_for_a_shell_can_be_had(shell: str) -> None:
    done = _shoal(_SHOAL_COMPLETE=f"source_{shell}")
    assert done.returncode == 0 and "shoal" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["nonsense"], ["bench", "fold", "--params", "x"]]
)
def test_a_pipe_gets_plain_text(arguments: list[str]) -> None:
    done = _shoal(*arguments, TERM="xterm-256color")
    assert done.stdout + done.stderr and "\x1b" not in done.stdout + done.stderr


def test_no_color_is_heeded_even_where_colours_are_forced() -> None:
    done = _shoal("--help", TERM="xterm-256color", FORCE_COLOR="1", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", done.stdout)
