"""Fleet files: what they mean, and what is said when they are wrong."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from shoal.base.errors import ShoalError
from shoal.lab.accuracy import expected_rate
from shoal.lab.library import find_fleet, load_fleet, parse_fleet, shipped, with_hosts
from shoal.lab.links import Between, Power, Tune, fleet_to_links, timeline
from shoal.lab.orders import all_orders, orders_after
from shoal.lab.profiles import PROFILES

MBIT = 125_000.0


def test_the_shipped_fleets_are_what_they_say() -> None:
    made = {name: fleet_to_links(find_fleet(name)) for name in shipped()}
    assert {name: len(network.lines) for name, network in made.items()} == {
        "campus": 8,
        "continental": 8,
        "hostile-wan": 6,
        "volunteers": 16,
    }
    trips = {
        name: [2e3 * n.path(a, b).latency_s for a in n.names for b in n.names if a != b]
        for name, n in made.items()
    }
    assert (min(trips["continental"]), max(trips["continental"])) == pytest.approx((20, 90))
    assert min(trips["volunteers"]) >= 20 and max(trips["volunteers"]) <= 250
    assert max(trips["campus"]) < 5
    assert set(trips["hostile-wan"]) == {300}
    volunteers = made["volunteers"].lines
    assert {line.speed for line in volunteers} >= {1, 20}
    assert max(line.loss for line in volunteers) == 0.03
    assert min(line.up_bytes_s for line in volunteers) == 10 * MBIT
    assert max(line.down_bytes_s for line in volunteers) == 300 * MBIT
    assert any(isinstance(step.change, Power) for step in islice(timeline(find_fleet("volunteers")), 5))
    assert made["hostile-wan"].path("far-1", "far-2").loss == 0.05


def test_the_profiles_are_all_there() -> None:
    names = [
        "datacentre",
        "fibre",
        "cable",
        "dsl",
        "4g",
        "wifi",
        "transatlantic",
        "transpacific",
        "satellite",
    ]
    assert list(PROFILES) == names


def test_a_line_is_its_own_values_then_its_profiles_then_the_defaults() -> None:
    fleet = parse_fleet(
        """
        defaults: {jitter: 3 ms, up: 1 Mbit/s}
        hosts:
          - {name: a, profile: dsl, up: 7 Mbit/s}
          - {name: b}
        """
    )
    a, b = fleet_to_links(fleet).lines
    assert (a.up_bytes_s, a.down_bytes_s, a.jitter_s, a.queue) == (7 * MBIT, 50 * MBIT, 0.002, 256 * 1024)
    assert (b.up_bytes_s, b.down_bytes_s, b.jitter_s, b.queue) == (1 * MBIT, 0, 0.003, None)
    assert b.queue_bytes(100 * MBIT) == 10 * MBIT


def test_paths_add_up_lines_and_later_overrides_win() -> None:
    fleet = parse_fleet(
        """
        hosts:
          - {name: a, latency: 10 ms, loss: 1 %, jitter: 3 ms, up: 8 Mbit/s}
          - {name: b, latency: 20 ms, loss: 2 %, jitter: 4 ms, region: far}
          - {name: c, region: far}
        pairs:
          - {between: [far, a], rtt: 100 ms}
          - {between: [a, c], loss: 50 %, rate: 4 Mbit/s}
        """
    )
    network = fleet_to_links(fleet)
    a_b = network.path("a", "b")
    assert (a_b.latency_s, a_b.jitter_s) == (0.05, pytest.approx(0.005))
    assert a_b.loss == pytest.approx(1 - 0.99 * 0.98)
    assert network.path("b", "a") == a_b
    assert (network.path("c", "a").latency_s, network.path("c", "a").loss) == (0.05, 0.5)
    assert network.path("b", "c").latency_s == 0.02
    assert network.rate_bytes_s("a", "c") == 4 * MBIT
    assert expected_rate(network, "a", "b") == pytest.approx(8 * MBIT * 0.99 * 0.98)


def test_changes_make_another_network() -> None:
    network = fleet_to_links(parse_fleet("hosts: [{name: a}, {name: b}, {name: c}]"))
    cut = network.after(Between(frozenset({("a", "b")}), True))
    assert not cut.path("a", "b").open and cut.path("b", "a").open
    assert cut.after(Between(frozenset({("a", "b")}), False)).path("a", "b").open
    off = network.after(Power(("c",), False))
    assert not off.path("a", "c").open and not off.path("c", "a").open and off.path("a", "b").open
    tuned = network.after(Tune(("a",), {"up": 1000.0, "loss": 0.1}))
    assert (tuned.lines[0].up_bytes_s, tuned.lines[0].loss, tuned.lines[1].up_bytes_s) == (1000, 0.1, 0)


def test_an_emulator_is_told_what_changed_and_no_more() -> None:
    network = fleet_to_links(parse_fleet("hosts: [{name: a, latency: 1 ms}, {name: b}, {name: c}]"))
    assert len(list(all_orders(network))) == 3 + 9
    assert "pair 0 1 1 0.001 0 0.2 0 0 65536" in list(all_orders(network))
    change = Between(frozenset({("a", "b")}), True)
    assert list(orders_after(network.after(change), change)) == ["pair 0 1 0 0.001 0 0.2 0 0 65536"]
    tune = Tune(("c",), {"up": 1e6})
    orders = list(orders_after(network.after(tune), tune))
    assert orders[0] == "host 2 1000000 0 100000 65536" and len(orders) == 1 + 5


def test_events_come_in_order_and_end_again() -> None:
    fleet = parse_fleet(
        """
        hosts: [{name: a}, {name: b, count: 2, region: east}]
        events:
          - {at: 9, do: set, host: east, up: 1 Mbit/s}
          - {at: 1 s, do: cut, between: [a, "*"], lasts: 5 s}
          - {at: 2, do: off, host: b-1, lasts: 1 s}
          - {at: 4, do: cut, between: [b-1, b-2], one_way: true}
        """
    )
    steps = list(timeline(fleet))
    assert [(step.at_s, step.what) for step in steps] == [
        (1, "cut a - *"),
        (2, "off b-1"),
        (3, "on b-1"),
        (4, "cut b-1 -> b-2"),
        (6, "heal a - *"),
        (9, "set east up 1 Mbit/s"),
    ]
    assert steps[0].change == Between(
        frozenset({("a", "b-1"), ("b-1", "a"), ("a", "b-2"), ("b-2", "a")}), True
    )
    assert steps[3].change == Between(frozenset({("b-1", "b-2")}), True)
    assert steps[5].change == Tune(("b-1", "b-2"), {"up": MBIT})


def test_a_trace_repeats(tmp_path: Path) -> None:
    (tmp_path / "up.csv").write_text("seconds, up_mbit, loss_percent\n0,10,0\n2,1,50\n")
    path = tmp_path / "fleet.yaml"
    path.write_text("hosts: [{name: a}]\ntraces: [{host: a, file: up.csv}]")
    steps = list(islice(timeline(load_fleet(path)), 4))
    assert [(step.at_s, step.change) for step in steps] == [
        (0, Tune(("a",), {"up": 10 * MBIT, "loss": 0.0})),
        (2, Tune(("a",), {"up": 1 * MBIT, "loss": 0.5})),
        (4, Tune(("a",), {"up": 10 * MBIT, "loss": 0.0})),
        (6, Tune(("a",), {"up": 1 * MBIT, "loss": 0.5})),
    ]
    once = parse_fleet(
        "hosts: [{name: a}]\ntraces: [{host: a, file: up.csv, repeat: false}]", folder=tmp_path
    )
    assert len(list(timeline(once))) == 2


def test_hosts_come_and_go_the_same_way_every_time() -> None:
    text = "seed: 5\nhosts: [{name: a, count: 2, online: 60 s, offline: 10 s}]"
    steps = list(islice(timeline(parse_fleet(text)), 200))
    assert steps == list(islice(timeline(parse_fleet(text)), 200))
    assert steps != list(islice(timeline(parse_fleet(text.replace("5", "6"))), 200))
    of_one = [step for step in steps if step.what.endswith("a-1")]
    assert [step.what.split()[0] for step in of_one[:4]] == ["off", "on", "off", "on"]
    assert of_one[-1].at_s / (len(of_one) / 2) == pytest.approx(70, rel=0.3)


def test_a_fleet_of_another_size() -> None:
    fleet = find_fleet("continental")
    small = with_hosts(fleet, 2)
    assert list(fleet_to_links(small).names) == ["west-1", "west-2"]
    large = fleet_to_links(with_hosts(fleet, 20))
    assert len(large.names) == 20
    assert large.path("west-1-again-1", "east-1").latency_s == 0.045


WRONG = {
    "not yaml": ("hosts: [", "SH-LAB-01", "is not YAML"),
    "a list": ("- a", "SH-LAB-01", "not a mapping"),
    "no hosts": ("name: x", "SH-LAB-02", "hosts: missing"),
    "no unit": (
        "hosts: [{name: a, up: 100}]",
        "SH-LAB-02",
        "hosts.0.up: found 100; allowed: a rate with its unit",
    ),
    "a time for a rate": (
        "hosts: [{name: a, up: 5 ms}]",
        "SH-LAB-02",
        "hosts.0.up: 'ms' is not a unit of rate",
    ),
    "bare latency": ("hosts: [{name: a, latency: '40'}]", "SH-LAB-02", "hosts.0.latency: '40' has no unit"),
    "too long": ("hosts: [{name: a, latency: 40 s}]", "SH-LAB-02", "hosts.0.latency: found '40 s'"),
    "bare loss": (
        "hosts: [{name: a, loss: 0.1}]",
        "SH-LAB-02",
        "hosts.0.loss: found 0.1; allowed: a percentage",
    ),
    "much loss": ("hosts: [{name: a, loss: 120 %}]", "SH-LAB-02", "hosts.0.loss"),
    "no number": ("hosts: [{name: a, loss: x %}]", "SH-LAB-02", "hosts.0.loss"),
    "typo": ("hosts: [{name: a, latencey: 4 ms}]", "SH-LAB-02", "did you mean 'latency'?"),
    "capital": ("hosts: [{name: A}]", "SH-LAB-02", "hosts.0.name: found 'A'"),
    "twice": ("hosts: [{name: a-1}, {name: a, count: 2}]", "SH-LAB-02", "two hosts are called 'a-1'"),
    "profile": (
        "hosts: [{name: a, profile: isdn}]",
        "SH-LAB-02",
        "hosts.0.profile: found 'isdn'; allowed: data",
    ),
    "half churn": ("hosts: [{name: a, online: 5 s}]", "SH-LAB-02", "online and offline go together"),
    "unknown in pair": (
        "{hosts: [{name: a}], pairs: [{between: [a, b]}]}",
        "SH-LAB-02",
        "pairs.0.between: 'b'",
    ),
    "three in pair": ("{hosts: [{name: a}], pairs: [{between: [a, a, a]}]}", "SH-LAB-02", "pairs.0.between"),
    "rtt and latency": (
        "{hosts: [{name: a}], pairs: [{between: [a, a], rtt: 1 ms, latency: 1 ms}]}",
        "SH-LAB-02",
        "give rtt or latency",
    ),
    "event": (
        "{hosts: [{name: a}], events: [{at: 1, do: explode}]}",
        "SH-LAB-02",
        "allowed: cut, heal, off, on, set",
    ),
    "event without host": (
        "{hosts: [{name: a}], events: [{at: 1, do: off}]}",
        "SH-LAB-02",
        "events.0.host: missing",
    ),
    "event too early": (
        "{hosts: [{name: a}], events: [{at: -1, do: on, host: a}]}",
        "SH-LAB-02",
        "events.0.at",
    ),
    "command": ("{hosts: [{name: a}], commands: {b: ls}}", "SH-LAB-02", "commands: 'b' is neither"),
    "odd command": ("{hosts: [{name: a}], commands: {a: 5}}", "SH-LAB-02", "commands.a"),
    "trace": ("{hosts: [{name: a}], traces: [{host: a}]}", "SH-LAB-02", "traces.0: give a file with rows"),
    "no trace file": ("{hosts: [{name: a}], traces: [{host: a, file: no.csv}]}", "SH-LAB-01", "no.csv"),
    "congestion": ("{hosts: [{name: a}], congestion: 'a b'}", "SH-LAB-02", "congestion"),
    "many": ("hosts: [{name: a, count: 9999}]", "SH-LAB-02", "hosts.0.count"),
    "none": ("hosts: []", "SH-LAB-02", "hosts: has 0; allowed: at least 1"),
    "nothing is set": (
        "{hosts: [{name: a}], events: [{at: 1, do: set, host: a}]}",
        "SH-LAB-02",
        "events.0: changes nothing",
    ),
    "a field of another event": (
        "{hosts: [{name: a}], events: [{at: 1, do: cut, between: [a, a], host: a}]}",
        "SH-LAB-02",
        "events.0.host: unknown field here",
    ),
    "thin": ("hosts: [{name: a, up: 1 kbit/s}]", "SH-LAB-02", "found '1 kbit/s'; allowed: 8 kbit/s"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(what: str, tmp_path: Path) -> None:
    text, code, words = WRONG[what]
    with pytest.raises(ShoalError) as caught:
        parse_fleet(text, folder=tmp_path)
    assert caught.value.code == code
    assert words in caught.value.cause


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("seconds,speed\n0,1\n", "column 'speed'"),
        ("up_mbit\n1\n", "no column 'seconds'"),
        ("seconds,up_mbit\n0,fast\n", "line 2, up_mbit: 'fast' is not a number"),
        ("seconds,up_mbit\n0\n", "line 2: not 2 cells"),
        ("seconds,up_mbit\n1,5\n1,6\n", "times must rise"),
        ("seconds,up_mbit\n0,0\n", "traces.0.points.0.up"),
        ("seconds,up_mbit\n0,nan\n", "traces.0.points.0.up"),
        ("seconds,up_mbit\n0,inf\n", "traces.0.points.0.up"),
        ("seconds,up_mbit\n0,4\n0.000001,5\n", "less than 1 ms apart"),
        ("", "no column 'seconds'"),
    ],
)
def test_what_is_wrong_in_a_trace_is_named(rows: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(rows)
    with pytest.raises(ShoalError, match="SH-LAB-02") as caught:
        parse_fleet("{hosts: [{name: a}], traces: [{host: a, file: t.csv}]}", folder=tmp_path)
    assert words in caught.value.cause


def test_one_wrong_host_is_one_complaint() -> None:
    with pytest.raises(ShoalError) as caught:
        parse_fleet("hosts: [{name: a, upp: 1 Mbit/s}]")
    assert caught.value.cause == "fleet: hosts.0.upp: unknown field (did you mean 'up'?)"


def test_a_spreadsheets_trace_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbfseconds,up_mbit\r\n0,4\r\n5,3\r\n")
    fleet = parse_fleet("{hosts: [{name: a}], traces: [{host: a, file: t.csv}]}", folder=tmp_path)
    assert [point.up for point in fleet.traces[0].points] == [4 * MBIT, 3 * MBIT]


def test_a_fleet_that_is_nowhere() -> None:
    with pytest.raises(ShoalError, match="SH-LAB-01") as caught:
        find_fleet("atlantis")
    assert "volunteers" in caught.value.next_step
