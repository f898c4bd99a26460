"""`shoal serve` from start to end, in this process and as one of its own."""

from __future__ import annotations

import logging
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.apps.api.diary import FieldFormatter
from shoal.apps.cli import find
from shoal.base.errors import ShoalError
from shoal.wire.ticket import Ticket, read_ticket

from .serving import Serving, serving


def _tickets(found: Serving) -> list[Ticket]:
    lines = [line.strip() for line in found.welcome]
    return [read_ticket(line.removeprefix("shoal join ")) for line in lines if line.startswith("shoal join ")]


def test_a_recipe_is_submitted_once_and_its_ticket_stands(tmp_path: Path) -> None:
    with serving(tmp_path, recipe="digits") as first:
        (ticket,) = _tickets(first)
    with serving(tmp_path, recipe="digits") as second:
        with second.client() as api:
            assert len(api.runs()) == 1
        (again,) = _tickets(second)
        assert (again.run, again.token) == (ticket.run, ticket.token)
        assert second.token == first.token
    with serving(tmp_path, recipe="digits", settings=("seed=5",)) as third:
        assert len(_tickets(third)) == 2


def test_an_expired_ticket_is_replaced_at_the_next_start(tmp_path: Path) -> None:
    with serving(tmp_path, recipe="digits", token_expires_s=0.001) as first:
        (old,) = _tickets(first)
    with serving(tmp_path) as second:
        (new,) = _tickets(second)
    assert (new.run, new.token != old.token) == (old.run, True)


def test_secrets_are_their_owners_alone(tmp_path: Path) -> None:
    with serving(tmp_path, recipe="digits") as found:
        home = found.home.coordinator
        secret = [home / "key", home / "admin-token", *home.glob("runs/*/join-token")]
        assert len(secret) == 3
        assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}


@pytest.mark.parametrize("port", ["port", "control_port", "blob_port"])
def test_a_taken_port_is_named(tmp_path: Path, port: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises((ShoalError, ExceptionGroup)) as caught, serving(tmp_path, **{port: number}):
            pass
    error = find(caught.value, ShoalError)
    assert error.code == "SH-SERVE-01"
    assert str(number) in error.cause


def test_a_store_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 1000)
    with pytest.raises(ShoalError) as caught, serving(tmp_path / "home", store=str(tmp_path / "junk")):
        pass
    assert caught.value.code == "SH-LOG-04"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: int) -> None:
    ports = ["--port", "0", "--control-port", "0", "--blob-port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal.apps.cli", "serve", "--home", str(tmp_path), *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "ready\n":
            assert line, process.communicate()[1]
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_events_are_one_line_each() -> None:
    record = logging.makeLogRecord(
        {"msg": "round_sealed", "levelname": "INFO", "round": 7, "reason": "2 of\x1b2"}
    )
    line = FieldFormatter().format(record)
    assert line.endswith('info round_sealed round=7 reason="2 of 2"')
    assert "\n" not in line
