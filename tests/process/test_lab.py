"""Labs with real namespaces: what programs in them see is what the fleet says."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator

import pytest

from shoal.base.errors import ShoalError
from shoal.lab import Lab, parse_fleet
from shoal.lab.accuracy import Compared
from shoal.lab.links import Power
from shoal.lab.running import plan, run_plan

from .processes import eventually

PAIR = """
name: pair
seed: 3
hosts:
  - {name: a, region: west, up: 20 Mbit/s, down: 20 Mbit/s, latency: 10 ms, speed: 2}
  - {name: b, up: 20 Mbit/s, down: 20 Mbit/s, latency: 10 ms, loss: 3 %}
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2])).close()
    print("reached")
except OSError as error:
    print(type(error).__name__)
"""
LISTEN = """
import socket
server = socket.create_server(("", 5000))
print("listening", flush=True)
while True:
    taken, _ = server.accept()
    with taken:
        while taken.recv(65536):
            pass
"""
SEND = """
import socket, time
sent = bytes(3_000_000)
began = time.monotonic()
with socket.create_connection(("b", 5000)) as line:
    line.sendall(sent)
    line.shutdown(socket.SHUT_WR)
    line.recv(1)
print(8e-6 * len(sent) / (time.monotonic() - began))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts without loss, and a server in b."""
    with Lab(parse_fleet(PAIR.replace(", loss: 3 %", "")), emulator="native") as made:
        serving = run_until_it_says(made, "b", LISTEN, "listening")
        yield made
        assert serving.code is None


def run_until_it_says(lab: Lab, host: str, program: str, word: str):  # type: ignore[no-untyped-def]
    import os

    reading, writing = os.pipe()
    process = lab.start(host, [sys.executable, "-c", program], output=writing, errors=2)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.readline().strip() == word
    return process


def reach(lab: Lab, sender: str, timeout_s: float) -> str:
    return lab.run(sender, [sys.executable, "-c", CONNECT, "b", str(timeout_s)]).output.strip()


@pytest.mark.parametrize("emulator", ["native", "python"])
def test_probes_find_the_links_as_they_should_be(emulator: str) -> None:
    with Lab(parse_fleet(PAIR), emulator=emulator) as lab:
        found: dict[tuple[str, str], Compared] = {(item.pair, item.what): item for item in lab.measure()}
        lab.begin()
        report = lab.report()
    assert found["a->b", "rtt_ms"].measured == pytest.approx(40, rel=0.1)
    assert found["a->b", "rate_mbit"].measured == pytest.approx(20 * 0.97, rel=0.1)
    assert 1.0 < found["a->b", "loss_percent"].measured < 6.0
    assert not [item.words() for item in found.values() if item.off]
    assert report.emulator == emulator and report.probed and report.congestion in ("bbr", "cubic", "reno")
    assert report.late_probes_p99_s is not None


def test_a_plain_tcp_program_gets_the_rate_and_no_more(lab: Lab) -> None:
    mbit = float(lab.run("a", [sys.executable, "-c", SEND], timeout_s=30).output)
    assert 12 < mbit < 20


def test_a_cut_stops_packets_and_healing_lets_them_pass(lab: Lab) -> None:
    assert reach(lab, "a", 5) == "reached"
    lab.cut("a", "b")
    assert reach(lab, "a", 0.3) == "TimeoutError"
    lab.heal("a", "b")
    assert reach(lab, "a", 5) == "reached"


def test_a_host_that_is_off_is_silent_and_asleep(lab: Lab) -> None:
    lab.change(Power(("b",), False))
    assert reach(lab, "a", 0.3) == "TimeoutError"
    states = lab.run("a", ["ps", "-eo", "stat,args"]).output
    assert re.search(r"^T\S* .*import socket server", states, re.MULTILINE)
    lab.change(Power(("b",), True))
    assert reach(lab, "a", 5) == "reached"


def test_programs_know_where_they_are(lab: Lab) -> None:
    words = "echo $SHOAL_LAB_HOST $SHOAL_LAB_INDEX $SHOAL_LAB_SIZE $SHOAL_LAB_ADDRESS $SHOAL_LAB_HOSTS; hostname; "
    words += "echo $SHOAL_LAB_REGION $SHOAL_LAB_SPEED"
    said = lab.run("a", ["sh", "-c", words]).output.splitlines()
    assert said == ["a 0 2 10.77.0.1 a=10.77.0.1,b=10.77.0.2", "a", "west 2"]


def test_programs_inherit_nothing_of_the_labs(lab: Lab) -> None:
    listed = lab.run(
        "a", [sys.executable, "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"]
    )
    assert listed.output == "[0, 1, 2, 3]\n", "3 is the folder being listed"


def test_a_dead_emulator_makes_the_run_invalid() -> None:
    with Lab(parse_fleet("hosts: [{name: a}, {name: b}]"), emulator="native") as lab:
        lab.begin()
        lab.run("a", ["kill", "-KILL", "2"])
        done = lab.run("a", ["sh", "-c", "exit 4"])
        report = lab.report()
    assert done.code == 4
    assert "the emulator ended in the middle of the run" in report.reasons


def test_a_program_that_is_not_there_is_an_error(lab: Lab) -> None:
    with pytest.raises(ShoalError, match="SH-LAB-06") as caught:
        lab.run("a", ["no-such-program"])
    assert "no-such-program cannot be started in a" in caught.value.cause
    with pytest.raises(ShoalError, match="SH-LAB-06"):
        lab.run("nobody", ["true"])


def test_a_program_that_takes_too_long_is_ended(lab: Lab) -> None:
    done = lab.run("a", ["sh", "-c", "echo begun; sleep 1000"], timeout_s=0.5)
    assert (done.code, done.output) == (None, "begun\n")


def test_events_come_in_their_time() -> None:
    """Echoes one after another; while the pair is cut there are none."""
    fleet = parse_fleet(
        """
        hosts: [{name: a, latency: 5 ms}, {name: b}]
        events:
          - {at: 3 s, do: cut, between: [a, b], lasts: 0.8 s}
        commands:
          b: {run: [python3, -c, "SERVER"], background: true}
          a: {run: [python3, -c, "CLIENT"]}
        """.replace("SERVER", ECHO_SERVER).replace("CLIENT", ECHO_CLIENT)
    )
    said: list[str] = []
    with Lab(fleet, emulator="native") as lab:
        outcome = run_plan(lab, plan(fleet, [], []), say=lambda host, line: said.append(line), timeout_s=30)
    assert not outcome.failed and not outcome.timed_out
    assert 0.7 < float(said[-1]) < 1.2
    assert [event.what for event in outcome.report.events] == ["cut a - b", "heal a - b"]


ECHO_SERVER = (
    "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 6000)); "
    "[s.sendto(*s.recvfrom(100)) for _ in iter(int, 1)]"
)
ECHO_CLIENT = r"""
import socket, time
s = socket.socket(type=socket.SOCK_DGRAM)
s.connect(('b', 6000))
began = last = time.monotonic()
gap = 0.0
while time.monotonic() < began + 20 and gap < 0.5:
    s.settimeout(0.02)
    try:
        s.send(b'x')
        s.recv(100)
        gap = time.monotonic() - last if last != began else 0.0
        last = time.monotonic()
    except OSError:
        pass
print(gap)
""".replace("\n", "\\n")


def test_events_begin_again_on_the_network_as_it_was() -> None:
    events = "events: [{at: 200 ms, do: set, host: a, latency: 70 ms}, {at: 200 ms, do: off, host: b}]"
    with Lab(parse_fleet(PAIR + events), emulator="native") as lab:
        first = lab.network
        lab.begin()
        for count in (2, 4):
            eventually(lambda: len(lab.report().events) == count, 10.0, "all events")  # noqa: B023 (called at once)
            assert lab.network.lines[0].latency_s == 0.07 and not lab.network.lines[1].on
            if count == 2:
                lab.begin_again()
                assert lab.network == first
        assert [event.at_s for event in lab.report().events] == [0.2] * 4


def test_a_server_in_the_background_and_a_client_in_front() -> None:
    fleet = parse_fleet(
        """
        hosts: [{name: server}, {name: client, count: 2, latency: 2 ms}]
        commands:
          server: {run: python3 -m http.server 8000 --directory /etc, background: true}
          "*":
            run:
              - python3
              - -c
              - |
                import time, urllib.request
                for _ in range(100):
                    try:
                        print(urllib.request.urlopen("http://server:8000/hostname", timeout=5).status)
                        break
                    except OSError:
                        time.sleep(0.05)
        """
    )
    said: list[tuple[str, str]] = []
    with Lab(fleet) as lab:
        outcome = run_plan(lab, plan(fleet, [], []), say=lambda *line: said.append(line), timeout_s=30)
    assert not outcome.failed
    assert {host for host, line in said if line == "200"} == {"client-1", "client-2"}
    assert outcome.report.hosts[0].codes == (-15,)


def test_a_lab_in_an_event_loop() -> None:
    async def visit() -> str:
        async with Lab(parse_fleet("hosts: [{name: only}]")) as lab:
            return (await lab.run_async("only", ["hostname"])).output

    assert asyncio.run(visit()) == "only\n"


def test_a_congestion_control_that_there_is_not() -> None:
    with (
        pytest.raises(ShoalError, match="SH-LAB-05"),
        Lab(parse_fleet("hosts: [{name: a}]"), congestion="nonesuch"),
    ):
        pass
