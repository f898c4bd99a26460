"""`shoal serve` from start to end, in this process and as one of its own."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.apps.cli import find
from shoal.apps.log_lines import FieldFormatter
from shoal.base.errors import ShoalError
from shoal.strategy.recipe import parse_recipe
from shoal.wire.ticket import Ticket, read_ticket

from .serving import Serving, serving

DIGITS = "{model: {kind: mlp}, data: {source: digits}, inner: {kind: adamw}, budget: {rounds: 1}}"


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


def _damage(store: Path, runs: list[str]) -> None:
    with sqlite3.connect(store) as database:
        for run in runs:
            where = "WHERE run = ? AND position = 0"
            (entry,) = database.execute(f"SELECT entry FROM shoal_entries {where}", (run,)).fetchone()
            damaged = bytes([*entry[:50], entry[50] ^ 1, *entry[51:]])
            database.execute(f"UPDATE shoal_entries SET entry = ? {where}", (damaged, run))


def test_a_damaged_run_is_told_and_the_others_are_served(tmp_path: Path) -> None:
    with serving(tmp_path, recipe="digits") as found, found.client() as api:
        bad = api.runs()[0].run
        good = api.submit((parse_recipe(DIGITS)).model_dump_json()).run
    store = tmp_path / "coordinator" / "store.sqlite"
    _damage(store, [bad])
    with serving(tmp_path) as found, found.client() as api:
        assert [run.run for run in api.runs()] == [good]
        told = "\n".join(found.welcome)
        assert f"{bad} IS NOT SERVED" in told and "SH-LOG-01" in told and "next: " in told
        with pytest.raises(ShoalError, match="SH-LOG-01"):
            api.run(bad)
    _damage(store, [good])
    with pytest.raises((ShoalError, ExceptionGroup)) as caught, serving(tmp_path):
        pass
    assert find(caught.value, ShoalError).code == "SH-LOG-01", "with nothing left to serve it does not start"


def test_a_run_that_names_other_coordinators_is_not_founded_and_keeps_no_other_from_service(
    tmp_path: Path,
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = (f"membership.coordinators=['127.0.0.1:{port}']",)
    with (
        serving(tmp_path, recipe="digits", settings=settings, control_port=port) as found,
        found.client() as api,
    ):
        led = api.runs()[0].run
        good = api.submit(parse_recipe(DIGITS).model_dump_json()).run
        elsewhere = parse_recipe(DIGITS, overrides=["membership.coordinators=['127.0.0.1:1']"])
        with pytest.raises(ShoalError, match=r"SH-LEAD-02.*127\.0\.0\.1:1 "):
            api.submit(elsewhere.model_dump_json())
        assert {run.run for run in api.runs()} == {led, good}
    with serving(tmp_path) as found, found.client() as api:  # At another port than the recipe names.
        assert [run.run for run in api.runs()] == [good]
        told = "\n".join(found.welcome)
        assert f"{led} IS NOT SERVED" in told and "SH-LEAD-02" in told and told.count("IS NOT SERVED") == 1


def test_a_taken_port_is_found_before_the_slow_parts(tmp_path: Path) -> None:
    code = (
        "import asyncio, socket, sys\nfrom pathlib import Path\n"
        "from shoal.apps.home import Home\nfrom shoal.apps.serve import ServeOptions, serve_until\n"
        "from shoal.base.errors import ShoalError\n"
        "taken = socket.create_server(('127.0.0.1', 0))\n"
        "options = ServeOptions(home=Home(Path(sys.argv[1])), control_port=taken.getsockname()[1], port=0)\n"
        "try:\n    asyncio.run(serve_until(options, asyncio.Event()))\n"
        "except ShoalError as error:\n    print(error.code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "SH-SERVE-01 False\n", done
    assert not list(tmp_path.iterdir())


def test_a_coordinator_loads_nothing_that_only_an_export_needs() -> None:
    code = (
        "import sys, shoal.apps.api.app\nprint(sorted({'transformers', 'sympy', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout == "[]\n", done


def test_a_store_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 1000)
    with pytest.raises(ShoalError) as caught, serving(tmp_path / "home", store=str(tmp_path / "junk")):
        pass
    assert caught.value.code == "SH-LOG-04"


def test_a_home_in_which_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "coordinator" / "lock").mkdir(parents=True)
    with pytest.raises(ShoalError) as caught, serving(tmp_path):
        pass
    assert caught.value.code == "SH-DISK-02" and "lock" in caught.value.cause


@contextmanager
def _process(home: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A coordinator of its own process, killed in the end if it is still there."""
    ports = ["--port", "0", "--control-port", "0", "--blob-port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal.apps.cli", "serve", "--home", str(home), *ports, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.kill()


def _until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    while (line := process.stdout.readline()) != "ready\n":
        assert line, process.communicate()[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: int) -> None:
    with _process(tmp_path) as process:
        _until_ready(process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("how", [[], ["--shared"]])
def test_a_second_coordinator_of_a_home_is_refused(tmp_path: Path, how: list[str]) -> None:
    with _process(tmp_path, *how) as first:
        _until_ready(first)
        for options in ([], ["--shared"]):
            with _process(tmp_path, *options) as second:
                _, errors = second.communicate(timeout=60)
            assert second.returncode == 1 and "SH-SERVE-03" in errors
        first.kill()
        first.wait()
        with _process(tmp_path, *how) as third:
            _until_ready(third)


def test_a_coordinator_that_was_deposed_stands_by_at_its_own_ports(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with _process(tmp_path, "--shared", "--port", port) as process:
        _until_ready(process)
        with sqlite3.connect(tmp_path / "coordinator" / "store.sqlite", timeout=60) as database:
            database.execute("UPDATE shoal_leads SET epoch = epoch + 1, leader = 'another', until_ms = 0")
        _until_ready(process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "deposed" in errors and "SH-LEAD-01" in errors


def test_events_are_one_line_each() -> None:
    record = logging.makeLogRecord(
        {"msg": "round_sealed", "levelname": "INFO", "round": 7, "reason": "2 of\x1b2"}
    )
    line = FieldFormatter().format(record)
    assert line.endswith('info round_sealed round=7 reason="2 of 2"')
    assert "\n" not in line
