"""Strangers' words reach a terminal as text, and as nothing else."""

from __future__ import annotations

import logging
import sys

import pytest
from runlog.small_log import NODES, Clerk

from shoal.apps import cli
from shoal.apps.api.models import RunSummary
from shoal.apps.log_lines import FieldFormatter
from shoal.apps.logs_reading import lines_of
from shoal.apps.node_status import NodeNow, show
from shoal.apps.printable import printable
from shoal.apps.run_tables import print_runs
from shoal.base.errors import ShoalError
from shoal.runlog.entries import Left, Stopped

EVIL = "\x1b]0;owned\x07\x1b[2J\r\nerror SH-FAKE-01\u202e\x9b31m"


def _is_clean(text: str) -> bool:
    return all(c.isprintable() for c in text)


def test_nothing_but_what_shows() -> None:
    assert printable("plain · text, ünïcode, 漢字") == "plain · text, ünïcode, 漢字"
    assert _is_clean(printable(EVIL + "\ud800\x00")) and "owned" in printable(EVIL)
    assert printable("x" * 1000) == "x" * 200 and printable("x" * 1000, 3) == "xxx"


def test_a_log_that_wants_to_paint_the_terminal() -> None:
    clerk = Clerk()
    clerk.found()
    clerk.join(*NODES[:2])
    clerk.append(Left(node=NODES[0].node, reason=EVIL))
    clerk.append(Stopped(reason=EVIL))
    lines = list(lines_of([*clerk.entries, b"\x1b[2J"]))
    assert all(_is_clean(str(line)) and _is_clean(line.text) for line in lines)
    assert any("owned" in line.text for line in lines)


def test_errors_in_a_strangers_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ShoalError("SH-JOIN-02", EVIL, EVIL)

    monkeypatch.setattr(cli.typer.main, "get_command", lambda _: type("Command", (), {"main": refuse})())
    with pytest.raises(SystemExit):
        cli.main(["join"])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(map(_is_clean, lines))


def test_the_volunteers_line_and_the_organisers_table(capsys: pytest.CaptureFixture[str]) -> None:
    now = NodeNow(
        round=1,
        doing=EVIL,
        connected=True,
        loss=None,
        validation=None,
        tokens_per_s=0.0,
        up_bytes=0,
        down_bytes=0,
        standing=f"out: {EVIL}",
    )
    assert _is_clean(show(now))
    run = {"run": "1" * 32, "name": EVIL, "state": "over", "round": 1, "rounds": None, "nodes_live": 0}
    none = {"train_loss": None, "validation_loss": None, "stopped": EVIL, "waiting_for": ""}
    print_runs([RunSummary(**{**run, **none})])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and _is_clean(lines[1].replace("\t", ""))


def test_a_trace_in_the_event_log() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        fields = {"msg": "channel_failed", "levelname": "ERROR", "reason": EVIL, "exc_info": sys.exc_info()}
    lines = FieldFormatter().format(logging.makeLogRecord(fields)).split("\n")
    assert len(lines) > 2 and all(map(_is_clean, lines))
