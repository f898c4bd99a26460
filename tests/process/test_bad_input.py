"""What people get wrong: each mistake is answered with a stable code, a cause and a next step, and costs nothing.

A run is in training all the while, and is checked at the end, by its fixture.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.apps.home import Home
from shoal.base.errors import CODES
from shoal.base.host import Channel
from shoal.base.ids import NodeId, RunId
from shoal.wire.identity import Identity
from shoal.wire.messages import PROTOCOL, Challenge, encode
from shoal.wire.ticket import Ticket, read_ticket, show_ticket
from shoal.worlds.real.channels import ChannelLimits, ChannelServer
from shoal.worlds.real.meter import Meter
from shoal.worlds.real.sqlstore import SqlLogStore

from .fleet import TINY, Fleet, tiny
from .processes import Child, Ended, free_port, run_shoal


@pytest.fixture(scope="module")
def knocking(training: Fleet) -> Child:
    """A node whose coordinator does not answer: it knocks for a while, and other tests go on."""
    ticket = read_ticket(training.ticket)
    nowhere = Ticket(ticket.coordinator, (f"127.0.0.1:{free_port()}",), ticket.run, ticket.token)
    return training.join("knocking", "--patience", "10s", ticket=show_ticket(nowhere))


def told(ended: Ended, code: str) -> str:
    """Check that a command failed as it should; its cause and next step."""
    assert ended.status == 1, ended
    lines = ended.err.strip().splitlines()[-3:]
    assert lines[0] == f"error {code}" and code in CODES, ended
    assert lines[1].startswith("  what: ") and len(lines[1]) > 12, ended
    assert lines[2].startswith("  next: ") and len(lines[2]) > 12, ended
    assert "Traceback" not in ended.err
    return "\n".join(lines[1:])


# --- recipes and data ------------------------------------------------------------------------------------


def _text(path: Path) -> dict[str, Any]:
    model = {"kind": "gpt", "width": 16, "layers": 1, "heads": 2}
    return {**TINY, "model": model, "data": {"source": "text", "path": str(path), "context": 16}}


MISTAKES: dict[str, tuple[str, str]] = {
    "not yaml": ("name: [unclosed", "SH-RECIPE-01"),
    "not a mapping": ("- 1\n- 2\n", "SH-RECIPE-01"),
    "unknown field": (json.dumps({**TINY, "modle": {}}), "SH-RECIPE-02"),
    "out of range": (json.dumps(tiny(inner={"batch_size": -3})), "SH-RECIPE-02"),
    "unsound": (json.dumps(tiny(membership={"lease_s": 0.1})), "SH-RECIPE-03"),
    "led by others": (json.dumps(tiny(membership={"coordinators": ["127.0.0.1:1"]})), "SH-LEAD-02"),
    "unknown dataset": (json.dumps(_text(Path("/nowhere/at/all.txt"))), "SH-DATA-01"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_broken_recipe(training: Fleet, knocking: Child, tmp_path: Path, mistake: str) -> None:
    text, code = MISTAKES[mistake]
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    told(run_shoal(["run", "submit", str(path), "--home", str(training.home)]), code)
    store = SqlLogStore(Home(training.home).store_url, create=False)
    assert store.runs() == [training.run], "what was refused is not founded"
    store.close()


def test_an_empty_dataset(training: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    (tmp_path / "empty.txt").write_text("")
    path.write_text(json.dumps(_text(tmp_path / "empty.txt")))
    told(run_shoal(["run", "submit", str(path), "--home", str(training.home)]), "SH-DATA-02")
    runs = run_shoal(["run", "list", "--json", "--home", str(training.home)])
    assert [item["run"] for item in json.loads(runs.out)] == [training.run]


# --- tickets ---------------------------------------------------------------------------------------------


def _join(ticket: str, home: Path, *options: str) -> Ended:
    return run_shoal(["join", ticket, "--home", str(home), "--yes", *options])


def test_a_garbled_ticket(tmp_path: Path) -> None:
    told(_join("shoal1-what-is-this", tmp_path), "SH-JOIN-01")


def test_a_wrong_token(training: Fleet, tmp_path: Path) -> None:
    ticket = msgspec.structs.replace(read_ticket(training.ticket), token="0" * 32)
    told(_join(show_ticket(ticket), tmp_path), "SH-JOIN-02")


def test_an_expired_ticket(training: Fleet, tmp_path: Path) -> None:
    answer = training.post("tickets", {"expires_s": 0.001})
    words = told(_join(answer["ticket"], tmp_path), "SH-JOIN-03")
    assert "expired" in words


def test_a_ticket_of_another_run(training: Fleet, tmp_path: Path) -> None:
    ticket = msgspec.structs.replace(read_ticket(training.ticket), run=RunId("ab" * 16))
    told(_join(show_ticket(ticket), tmp_path), "SH-JOIN-04")


def test_a_ticket_that_names_somebody_else(training: Fleet, tmp_path: Path) -> None:
    ticket = msgspec.structs.replace(read_ticket(training.ticket), coordinator=NodeId("ab" * 20))
    told(_join(show_ticket(ticket), tmp_path), "SH-JOIN-07")


# --- ports, places and versions --------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--port", "--control-port"])
def test_a_taken_port_of_a_coordinator(training: Fleet, tmp_path: Path, option: str) -> None:
    ports = {"--port": "0", "--control-port": "0", "--blob-port": "0", option: str(training.control_port)}
    flags = [word for pair in ports.items() for word in pair]
    words = told(run_shoal(["serve", "--home", str(tmp_path), *flags]), "SH-SERVE-01")
    assert str(training.control_port) in words


def test_a_taken_port_of_a_node(training: Fleet, tmp_path: Path) -> None:
    taken = ["--port", str(training.blob_port), "--bind", "127.0.0.1"]
    told(_join(training.ticket, tmp_path, *taken), "SH-SERVE-01")


def test_a_coordinator_of_another_version(tmp_path: Path) -> None:
    identity = Identity.generate()

    async def join() -> Ended:
        server = ChannelServer(identity, _newer(identity), Meter(), ChannelLimits())
        port = await server.start("127.0.0.1", 0)
        ticket = Ticket(identity.node, (f"127.0.0.1:{port}",), RunId("ab" * 16), "00")
        ended = await asyncio.to_thread(_join, show_ticket(ticket), tmp_path)
        await server.close()
        return ended

    words = told(asyncio.run(join()), "SH-JOIN-06")
    assert str(PROTOCOL + 1) in words


def _newer(identity: Identity) -> Any:
    async def serve(channel: Channel) -> None:
        challenge = Challenge(protocol=PROTOCOL + 1, coordinator=identity.node, nonce=b"n" * 32)
        frame = msgspec.msgpack.decode(encode(challenge))
        await channel.send(msgspec.msgpack.encode([PROTOCOL + 1, frame[1]]))
        await channel.recv()

    return serve


def test_a_coordinator_that_cannot_be_reached(training: Fleet, knocking: Child) -> None:
    assert knocking.ended(within_s=60.0) == 1
    words = told(Ended(1, "", knocking.err.read_text()), "SH-JOIN-05")
    assert "doctor" in words


def test_the_doctor_names_the_hop(training: Fleet, tmp_path: Path) -> None:
    ticket = read_ticket(training.ticket)
    nowhere = Ticket(ticket.coordinator, (f"127.0.0.1:{free_port()}",), ticket.run, ticket.token)
    found = _doctor(show_ticket(nowhere), tmp_path)
    assert found["first_failure"]["code"] == "SH-JOIN-05"
    assert "127.0.0.1" in json.dumps(found["first_failure"])
    hops = [check["name"] for check in found["checks"] if check["verdict"] == "ok"]
    assert "ticket" in hops
    assert _doctor(training.ticket, tmp_path)["ok"]


def _doctor(ticket: str, home: Path) -> dict[str, Any]:
    ended = run_shoal(["doctor", ticket, "--json", "--home", str(home)])
    found: dict[str, Any] = json.loads(ended.out)
    assert ended.status == (0 if found["ok"] else 1), ended
    return found
