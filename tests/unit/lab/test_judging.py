"""Whether a run may be believed: accuracy, lateness, processors, pace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.lab.accuracy import Measured, compare, late_quantile, pairs_to_probe
from shoal.lab.cpu import CpuUse, read_ticks
from shoal.lab.library import find_fleet, parse_fleet
from shoal.lab.links import fleet_to_links
from shoal.lab.pace import Pacer, environment_of, pacer, read_pace
from shoal.lab.report import HostReport, PaceUse, Report, why_invalid

PAIR = fleet_to_links(
    parse_fleet("hosts: [{name: a, latency: 50 ms, up: 8 Mbit/s}, {name: b, loss: 1 %, down: 80 Mbit/s}]")
)
QUIET = CpuUse(cores=2, busy_mean=0.5, saturated_share=0.0, samples=20)
GOOD = Report(
    fleet="f",
    emulator="native",
    doorway="tun",
    privileged=True,
    congestion="bbr",
    kernel="6",
    seconds=10.0,
    accuracy=(),
    late_p50_s=1e-5,
    late_p99_s=1e-4,
    late_packets=1000,
    late_probes_p99_s=1e-4,
    cpu=QUIET,
    pace=PaceUse(),
    hosts=(),
    events=(),
    probed=True,
)
HOST = HostReport(
    name="a", codes=(0,), sent_bytes=1, received_bytes=1, lost_packets=0, queue_drops=0, unread_drops=5
)


@pytest.mark.parametrize(
    ("rtt_s", "loss", "rate_bytes_s", "off"),
    [
        (0.1005, 0.01, 0.99e6, set()),
        (0.104, 0.015, 0.96e6, set()),
        (0.120, 0.01, 0.99e6, {"rtt_ms"}),
        (0.080, 0.01, 0.99e6, {"rtt_ms"}),
        (0.1005, 0.04, 0.99e6, {"loss_percent"}),
        (0.1005, 0.0, 0.99e6, {"loss_percent"}),
        (0.1005, 0.01, 0.90e6, {"rate_mbit"}),
        (0.1005, 0.01, 1.10e6, {"rate_mbit"}),
    ],
)
def test_what_is_far_from_what_it_should_be_is_off(
    rtt_s: float, loss: float, rate_bytes_s: float, off: set[str]
) -> None:
    measured = Measured(
        sender="a",
        receiver="b",
        rtt_s=rtt_s,
        loss=loss,
        packets=5000,
        seconds=2.0,
        rate_bytes_s=rate_bytes_s,
        rate_seconds=5.0,
    )
    found = compare(PAIR, [measured])
    assert {item.what for item in found} == {"rtt_ms", "loss_percent", "rate_mbit"}
    assert {item.what for item in found if item.off} == off


def test_jitter_makes_a_round_trip_less_sure() -> None:
    measured = Measured(sender="a", receiver="b", rtt_s=0.11, seconds=1.0)
    steady = fleet_to_links(parse_fleet("hosts: [{name: a, latency: 50 ms}, {name: b}]"))
    shaky = fleet_to_links(parse_fleet("hosts: [{name: a, latency: 50 ms, jitter: 5 ms}, {name: b}]"))
    assert [item.off for item in compare(steady, [measured])] == [True]
    assert [item.off for item in compare(shaky, [measured])] == [False]


def test_every_host_and_every_override_is_probed() -> None:
    ways = pairs_to_probe(fleet_to_links(find_fleet("continental")))
    assert (
        {a for a, _ in ways} == {b for _, b in ways} == set(fleet_to_links(find_fleet("continental")).names)
    )
    assert ("west-1", "east-1") in ways
    assert pairs_to_probe(fleet_to_links(parse_fleet("hosts: [{name: a}]"))) == []


def test_lateness_is_the_upper_bound_of_its_bucket() -> None:
    assert late_quantile([0, 0], 0.99) is None
    assert late_quantile([100], 0.99) == 1e-5
    assert late_quantile([98, 0, 2], 0.99) == pytest.approx(1e-5 * 1.25**2)
    assert late_quantile([99, 0, 1], 0.99) == 1e-5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"probed": False}, "not measured"),
        ({"late_p99_s": 0.002}, "2.00 ms late"),
        ({"late_p99_s": 0.002, "late_packets": 10}, ""),
        ({"late_packets": 10, "late_probes_p99_s": 0.002}, "2.00 ms late"),
        ({"late_p99_s": None, "late_packets": 0, "late_probes_p99_s": None}, ""),
        ({"cpu": replace(QUIET, saturated_share=0.3)}, "saturated 30%"),
        ({"pace": PaceUse(paced_s=10, overrun_s=2)}, "20% longer"),
        ({"pace": PaceUse(paced_s=10, overrun_s=0.1)}, ""),
        ({"emulator_ended": True}, "emulator ended"),
        ({"hosts": (HOST,)}, "5 packets were dropped"),
        ({"hosts": (HOST,), "late_packets": 100_000}, ""),
    ],
)
def test_a_run_is_valid_unless_there_is_a_reason(change: dict[str, object], words: str) -> None:
    report = replace(GOOD, **change)  # type: ignore[arg-type]
    reasons = why_invalid(report)
    assert len(reasons) == bool(words)
    assert all(words in reason for reason in reasons)
    told = replace(report, reasons=reasons).as_dict()
    assert told["valid"] == (not words) and json.dumps(told)


def test_only_our_processors_ticks_count() -> None:
    text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 0 10 70 10 0 0 0 0 0\ncpu1 100 0 0 0 0 0 0 0 0 0\nintr 5\n"
    assert read_ticks(text, {0}) == (20, 100)
    assert read_ticks(text, {0, 1}) == (120, 200)


def test_a_faster_device_waits_less_and_lateness_is_noted(tmp_path: Path) -> None:
    slow, fast = Pacer(2.0, 1.0), Pacer(2.0, 8.0, tmp_path / "fast.json")
    assert slow.left(100.0, 100.5, 2.0) == 1.5
    assert fast.left(100.0, 100.1, 2.0) == pytest.approx(0.15)
    assert fast.left(100.0, 101.25, 2.0) == 0.0
    assert read_pace(tmp_path) == PaceUse(paced_s=0.5, overrun_s=1.0)


def test_a_lab_tells_programs_their_pace(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("rubbish")
    environment = {**environment_of(4.0, 2.0), "SHOAL_LAB_PACE_FOLDER": str(tmp_path), "SHOAL_LAB_HOST": "a"}
    made = pacer(environment)
    assert made is not None and (made.step_s, made.speed) == (2.0, 4.0)
    made.left(0.0, 0.0, 4.0)
    assert read_pace(tmp_path) == PaceUse(paced_s=1.0, overrun_s=0.0)
    assert pacer({}) is None and pacer(environment_of(4.0, None)) is None
    assert pacer({"SHOAL_LAB_STEP_S": "soon"}) is None
