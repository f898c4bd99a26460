"""`shoal join`: a volunteer's node against a real coordinator, and what volunteers are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from shoal.apps.cli import app, find
from shoal.apps.idle import QUIET_S, IdleWatch
from shoal.apps.join_screen import PlainLines
from shoal.apps.joining import check_code
from shoal.apps.logs_reading import lines_of
from shoal.apps.node_status import NodeNow
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.strategy.recipe import parse_recipe
from shoal.wire.ticket import Ticket, show_ticket

from .runs_to_join import altered, tiny_run

FLAGS = ["--device", "cpu", "--threads", "1", "--yes"]


def _join(ticket: str, home: Path, *options: str) -> object:
    return CliRunner().invoke(app, ["join", ticket, "--home", str(home), *FLAGS, *options])


def _error(result: object) -> ShoalError:
    found = find(result.exception, ShoalError)  # type: ignore[attr-defined]
    assert isinstance(found, ShoalError), result
    return found


@pytest.fixture(autouse=True)
def _threads() -> object:
    """`--threads` is for the whole process, and this one has other tests to run."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_volunteer_is_told_trains_to_the_end_and_may_come_back(tmp_path: Path) -> None:
    with tiny_run(tmp_path) as (_, ticket):
        result = _join(ticket, tmp_path / "ann", "--name", "ann", "--max-up", "80Mbit", "--monthly", "1GB")
        assert result.exit_code == 0, result.output
        told = result.output
        assert "run 'tiny'" in told and "gpt" in told and "parameters" in told
        assert "none of the organiser's" in told
        assert "up 10.0 MB/s" in told and "1.0 GB a month" in told
        assert "ended: 3 rounds done" in told
        key = (tmp_path / "ann" / "node" / "key").read_bytes()
        again = _join(ticket, tmp_path / "ann")
        assert again.exit_code == 0, again.output
        assert (tmp_path / "ann" / "node" / "key").read_bytes() == key


def test_refusals_have_their_codes(tmp_path: Path) -> None:
    with tiny_run(tmp_path, rounds=1) as (_, ticket):
        wrong_run = altered(ticket, run="0" * 32)
        wrong_token = altered(ticket, token="no")
        wrong_node = altered(ticket, coordinator="0" * 40)
        assert _error(_join("nonsense", tmp_path / "n")).code == "SH-JOIN-01"
        assert _error(_join(wrong_token, tmp_path / "n")).code == "SH-JOIN-02"
        assert _error(_join(wrong_run, tmp_path / "n")).code == "SH-JOIN-04"
        assert _error(_join(wrong_node, tmp_path / "n")).code == "SH-JOIN-07"
        assert _error(_join(ticket, tmp_path / "n", "--max-up", "0Mbit")).code == "SH-JOIN-10"
        assert _error(_join(ticket, tmp_path / "n", "--monthly", "1kB")).code == "SH-JOIN-10"
        assert _error(_join(ticket, tmp_path / "n", "--gpu-memory", "1GiB")).code == "SH-JOIN-10"
        assert _error(_join(ticket, tmp_path / "n", "--device", "warp")).code == "SH-DEVICE-01"
        assert _error(_join(ticket, tmp_path / "n", "--max-up", "fast")).code == "SH-CLI-01"
        assert _error(_join(ticket, tmp_path / "n", "--threads", "99999999")).code == "SH-CLI-01"
        far = altered(ticket, addresses=("a" * 300 + ":8471",))
        assert _error(_join(far, tmp_path / "n", "--patience", "100ms")).code == "SH-JOIN-05"
        assert (
            _error(_join(ticket, tmp_path / "n", "--port", "0", "--advertise", "a..b")).code == "SH-SERVE-02"
        )
        (tmp_path / "full" / "node").mkdir(parents=True)
        (tmp_path / "full" / "node" / "runs").touch()
        assert _error(_join(ticket, tmp_path / "full")).code == "SH-DISK-02"
        assert _join(ticket, tmp_path / "first").exit_code == 0
        assert _error(_join(ticket, tmp_path / "late")).code == "SH-JOIN-08"


def test_patience_is_the_volunteers(tmp_path: Path) -> None:
    nobody = Ticket(NodeId("0" * 40), ("127.0.0.1:1",), RunId("0" * 32), "token")
    began = time.monotonic()
    assert _error(_join(show_ticket(nobody), tmp_path, "--patience", "100ms")).code == "SH-JOIN-05"
    assert time.monotonic() - began < 20, "well before the 30 s that are the default"
    assert _error(_join(show_ticket(nobody), tmp_path, "--patience", "a while")).code == "SH-CLI-01"


def test_an_expired_ticket_is_refused(tmp_path: Path) -> None:
    with tiny_run(tmp_path, token_expires_s=0.001) as (_, ticket):
        assert _error(_join(ticket, tmp_path / "n")).code == "SH-JOIN-03"


def test_a_signal_leaves_cleanly_and_the_same_command_resumes(tmp_path: Path) -> None:
    with tiny_run(tmp_path, rounds=100_000) as (found, ticket):
        command = [
            sys.executable,
            "-m",
            "shoal.apps.cli",
            "join",
            ticket,
            "--home",
            str(tmp_path / "bo"),
            *FLAGS,
        ]
        for _ in range(2):
            node = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            assert node.stdout is not None
            for line in node.stdout:
                if line.startswith("round ") and not line.startswith("round 0") and " · in" in line:
                    break
            assert _error(_join(ticket, tmp_path / "bo")).code == "SH-RUN-01", "one node, one process"
            node.send_signal(signal.SIGINT)
            rest = node.stdout.read()
            assert node.wait(60) == 0
            assert "ended: the volunteer left" in rest
            assert node.stderr is not None and node.stderr.read() == ""
        with found.client() as api:
            run = api.runs()[0].run
            deadline = time.monotonic() + 20
            while True:  # The goodbye may still be on its way when the process is gone.
                kinds = [line.kind for line in lines_of(api.log(run))]
                if "left" in kinds or time.monotonic() > deadline:
                    break
            # Who comes back within the round that it left is not entered twice.
            assert "left" in kinds and kinds.count("joined") in (1, 2)
            assert api.run(run).members == 1, "the same key is the same member"


def test_code_of_the_organiser_needs_leave() -> None:
    common = "data: {source: stdlib}\ninner: {kind: adamw}\nbudget: {rounds: 1}\nmodel: "
    remote = parse_recipe(common + "{kind: transformers, config: {auto_map: {AutoConfig: x.Y}}}")
    with pytest.raises(ShoalError) as caught:
        check_code(remote, allow_code=False)
    assert caught.value.code == "SH-JOIN-09"
    check_code(remote, allow_code=True)
    check_code(parse_recipe(common + "{kind: gpt}"), allow_code=False)


def test_idle_means_quiet_for_a_while() -> None:
    now, share, typed = [0.0], [0.0], [9999.0]
    watch = IdleWatch(lambda: share[0], lambda: typed[0], lambda: now[0])
    assert watch.reason() == ""
    now[0], share[0] = 10.0, 0.9
    assert "90%" in watch.reason()
    now[0], share[0] = 20.0, 0.0
    assert watch.reason(), "a pause in somebody's work is not idleness"
    now[0] = 10.0 + QUIET_S + 1
    assert watch.reason() == ""
    now[0], typed[0] = 100.0, 3.0
    assert "typed" in watch.reason()


def test_plain_lines_are_few() -> None:
    lines: list[str] = []
    plain = PlainLines(lines.append)
    now = NodeNow(
        round=1,
        doing="training round 1",
        connected=True,
        loss=2.0,
        validation=None,
        tokens_per_s=1500.0,
        up_bytes=10,
        down_bytes=20,
        standing="in",
    )
    for _ in range(5):
        plain.show(now)
    assert lines == ["round 1 · training round 1 · loss 2.000 · 1.5k tokens/s · up 10 B, down 20 B · in"]
