from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from shoal.worlds.real.failpoints import VARIABLE, parse

_PROGRAM = """
from shoal.worlds.real.failpoints import reached
for number in range(1, 6):
    reached("other")
    print(number, flush=True)
    reached("write.before-sync")
"""


def _start(setting: str) -> subprocess.Popen[str]:
    environment = {**os.environ, VARIABLE: setting}
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_kills_at_the_nth_time_the_point_is_reached() -> None:
    child = _start("write.before-sync:3:KILL")
    output, _ = child.communicate(timeout=30)
    assert child.returncode == -signal.SIGKILL
    assert output.split() == ["1", "2", "3"]


def test_stops_and_goes_on_when_continued() -> None:
    child = _start("write.before-sync:2:STOP")
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(child.pid, signal.SIGCONT)
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 0 and output.split() == ["1", "2", "3", "4", "5"]


def test_does_nothing_without_a_setting() -> None:
    child = _start("")
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 0 and len(output.split()) == 5


@pytest.mark.parametrize("text", ["x", "x:1", "x:0:KILL", "x:one:KILL", ":1:KILL", "x:1:HUP", "x:-1:KILL"])
def test_a_setting_that_is_none_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match=VARIABLE):
        parse(text)
