"""The parts of the demo that can go wrong quietly: its children, its counting and its pace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from shoal.apps.api.models import NodeStatus, RunStatus
from shoal.apps.demo_processes import Family
from shoal.apps.demo_summary import Pace
from shoal.apps.demo_view import Bytes, View
from shoal.base.errors import ShoalError

PARENT = """
import sys
from pathlib import Path
from shoal.apps.demo_processes import Family
with Family(Path(sys.argv[1]) / "logs") as family:
    options = ["--port", "0", "--control-port", "0", "--blob-port", "0", "--home", sys.argv[1]]
    child = family.start("coordinator", ["serve", *options], {})
    family.await_line(child, lambda line: line == "ready", 60)
    print(child.process.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's part is Linux's")
def test_children_die_with_the_demo_even_by_sigkill(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_child_that_fails_is_told_in_its_own_words(tmp_path: Path) -> None:
    with Family(tmp_path / "logs") as family:
        child = family.start("node-1", ["join", "nonsense", "--home", str(tmp_path)], {})
        with pytest.raises(ShoalError) as caught:
            family.await_line(child, lambda line: line == "never", 60)
    assert "SH-JOIN-01" in caught.value.cause and "node-1" in caught.value.cause


def test_bytes_count_over_all_lives_of_a_node() -> None:
    counted = Bytes()
    for up in (None, 10, 50, 5, 20):
        silent = NodeStatus.model_construct(name="b", up_bytes=None)
        counted.take([NodeStatus.model_construct(name="a", up_bytes=up, down_bytes=up), silent])
    assert counted.of("a") == (70, 70)
    assert counted.of("b") == (0, 0)
    assert counted.total() == (70, 70)


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    node = NodeStatus.model_construct(
        name="node-1",
        state="behind",
        why="its state stands nowhere yet",
        doing="",
        loss=None,
        tokens_per_s=None,
        up_bytes=1500,
        down_bytes=0,
    )
    status = RunStatus.model_construct(
        round=3,
        state="running",
        train_loss=2.5,
        validation_loss=None,
        nodes=[node],
        losses=[],
    )
    with View(10.0) as view:
        view.show(status)
        view.event("something happened")
    lines = capsys.readouterr().out.splitlines()
    assert "round   3  loss 2.500  validation -" in lines[0] and "node-1:out (behind)" in lines[0]
    assert lines[1].endswith("something happened")


def test_the_pace_keeps_to_a_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        pace = Pace()
        for _ in range(2 * Pace.TRIES + 3):
            with pace:
                pass
        assert torch.get_num_threads() in (1, os.cpu_count())
    finally:
        torch.set_num_threads(before)
