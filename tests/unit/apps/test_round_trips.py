"""Round trips to machines that listen and to those that do not, and the door at which others measure."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from shoal.apps.hub_address import read_hub_address
from shoal.apps.ports import open_port
from shoal.apps.round_trips import UNREACHED, Door, Prober, measured_trip_s
from shoal.base.errors import ShoalError


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline


def free_port() -> int:
    with open_port("127.0.0.1", 0) as sock:
        return int(sock.getsockname()[1])


def test_a_door_answers_while_it_is_open_and_its_port_is_free_at_once_when_it_is_closed() -> None:
    port = free_port()
    door = Door("127.0.0.1", port)
    for _ in range(2):
        door.open()
        door.open()  # Nothing to do.
        assert 0 < measured_trip_s(f"127.0.0.1:{port}") < 1
        door.close()
        assert measured_trip_s(f"127.0.0.1:{port}") == UNREACHED
        open_port("127.0.0.1", port).close()


@pytest.mark.parametrize(
    "address", ["", "nowhere", "127.0.0.1:0", "no.such.host.invalid:80", "a..b:80", "a" * 64 + ":80"]
)
def test_what_is_no_address_is_not_reached(address: str) -> None:
    assert measured_trip_s(address) == UNREACHED


def test_a_prober_tells_of_those_it_was_asked_for() -> None:
    door, prober = Door("127.0.0.1", free_port()), Prober()
    door.open()
    try:
        targets = {"a": f"127.0.0.1:{door._port}", "b": f"127.0.0.1:{free_port()}"}
        prober.look_at(targets)
        until(lambda: len(prober.found()) == 2)
        assert prober.found()["a"] > UNREACHED and prober.found()["b"] == UNREACHED
        prober.look_at({"b": targets["b"]})
        assert set(prober.found()) == {"b"}
    finally:
        door.close()


@pytest.mark.parametrize(
    "text", ["", "here", "host:", "host:0", "host:65534", "host:70000", ":4000", "a..b:4000"]
)
def test_a_hub_address_that_is_none(text: str) -> None:
    with pytest.raises(ShoalError) as caught:
        read_hub_address(text)
    assert caught.value.code == "SH-POOL-03" and "--hub-address" in caught.value.next_step


def test_a_hub_listens_everywhere_unless_it_is_for_this_machine_alone() -> None:
    assert read_hub_address("127.0.0.1:4000").bind == "127.0.0.1"
    assert read_hub_address("example.org:4000").bind == "0.0.0.0"
    assert (str(read_hub_address("[::2]:4000")), read_hub_address("[::2]:4000").bind) == ("[::2]:4000", "::")
