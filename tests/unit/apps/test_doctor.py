"""`shoal doctor`: each hop has a name, and the first failing one is told with its code."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from shoal.apps.cli import app
from shoal.apps.doctor_checks import Check, check_clock, check_writing
from shoal.apps.doctor_hops import APART_S, _check_relay, compare_clocks
from shoal.base.host import Peer
from shoal.base.ids import RunId
from shoal.wire.identity import Identity
from shoal.wire.ticket import Ticket
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost

from .runs_to_join import altered, tiny_run


def _doctor(home: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["doctor", "--home", str(home), *arguments])


def _first_failure(home: Path, ticket: str) -> tuple[str, str]:
    result = _doctor(home, ticket, "--json")
    assert result.exit_code == 1, result.output
    failure = json.loads(result.output)["first_failure"]
    return failure["name"], failure["code"]


def test_a_sound_machine_passes_and_is_left_as_it_was(tmp_path: Path) -> None:
    home = tmp_path / "not" / "yet"
    result = _doctor(home)
    assert result.exit_code == 0, result.output
    assert "nothing stands in the way" in result.output
    assert not home.exists() and not list(tmp_path.iterdir())


def test_every_hop_to_a_coordinator_is_named(tmp_path: Path) -> None:
    with tiny_run(tmp_path) as (found, ticket):
        result = _doctor(tmp_path / "home", ticket)
        assert result.exit_code == 0, result.output
        for hop in ("ticket", "name", "tcp", "tls", "identity", "protocol", "clocks", "relay"):
            assert any(line.startswith("ok") and f" {hop} " in line for line in result.output.splitlines()), (
                hop
            )
        with found.client() as api:
            assert api.run(api.runs()[0].run).members == 0, "looking does not join"
        assert _first_failure(tmp_path, altered(ticket, coordinator="0" * 40)) == ("identity", "SH-JOIN-07")
        api_address = found.address.removeprefix("http://")
        assert _first_failure(tmp_path, altered(ticket, addresses=(api_address,))) == ("tls", "SH-JOIN-05")
        unknown = altered(ticket, addresses=("no-such-host.invalid:1",))
        assert _first_failure(tmp_path, unknown) == ("name", "SH-JOIN-05")
        assert _first_failure(tmp_path, ticket[:-9]) == ("ticket", "SH-JOIN-01")
    assert _first_failure(tmp_path, ticket) == ("tcp", "SH-JOIN-05")


def test_a_server_of_something_else_is_told_from_ours(tmp_path: Path) -> None:
    with tiny_run(tmp_path) as (_, ticket), socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        other.close()
        assert _first_failure(tmp_path, altered(ticket, addresses=(address,))) == ("tcp", "SH-JOIN-05")


def test_a_key_that_others_can_read_fails(tmp_path: Path) -> None:
    key = tmp_path / "node" / "key"
    key.parent.mkdir(parents=True)
    key.write_text("0" * 64)
    key.chmod(0o644)
    result = _doctor(tmp_path)
    assert result.exit_code == 1
    assert "first failure: node key (SH-KEY-01)" in result.output


def test_an_impossible_clock_is_a_warning() -> None:
    assert check_clock(lambda: 0.0).verdict == "warn"


def test_a_folder_that_cannot_be_written_fails() -> None:
    check = check_writing(Path("/proc/self"))
    assert (check.verdict, check.code) == ("fail", "SH-DISK-02")


def test_a_relay_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    identity = Identity.generate()
    ticket = Ticket(identity.node, (address,), RunId("ab" * 16), "00")

    async def check() -> Check:
        async with RealHost(identity, FileDisk(tmp_path)) as host:
            return await _check_relay(host, ticket, Peer(node=identity.node, address=address))

    found = asyncio.run(check())
    assert (found.name, found.verdict, found.code) == ("relay", "fail", "SH-JOIN-05")
    assert address in found.found and "--blob-port" in found.remedy


def test_a_clock_that_differs_from_the_coordinators_is_told() -> None:
    assert compare_clocks(1000.0, None) == []
    assert compare_clocks(1000.0, 1000.0 - APART_S)[0].verdict == "ok"
    ahead, behind = compare_clocks(4600.0, 1000.0)[0], compare_clocks(1000.0, 4600.0)[0]
    assert (ahead.verdict, behind.verdict) == ("warn", "warn")
    assert "ahead of the coordinator's" in ahead.found and "behind the coordinator's" in behind.found
