"""What is learned of lines from requests as they begin and end."""

from __future__ import annotations

import pytest

from shoal.base.ids import NodeId
from shoal.measure.links import MAX_PEERS, LinkMeter

PEER, OTHER = NodeId("a" * 64), NodeId("b" * 64)
MIB = 1 << 20


def moved(meter: LinkMeter, began: float, ended: float, size_bytes: int, *, up: bool = False) -> None:
    meter.begin(PEER, began, up=up)
    meter.end(PEER, began, ended, size_bytes, up=up)


def test_small_requests_are_round_trips_and_large_ones_are_rates() -> None:
    meter = LinkMeter()
    moved(meter, 0.0, 0.05, 100)
    moved(meter, 1.0, 2.05, MIB)
    assert meter.rtt_s(PEER) == pytest.approx(0.05)
    # One round trip of the second is no time of sending.
    assert meter.down.rate.next() == pytest.approx(MIB / 1.0)
    assert not meter.up.rate.known


def test_requests_that_share_a_line_are_one_rate() -> None:
    meter = LinkMeter()
    for _ in range(4):
        meter.begin(PEER, 0.0, up=False)
    for ended in (0.9, 0.95, 0.98, 1.0):
        meter.end(PEER, 0.0, ended, MIB, up=False)
    assert meter.down.rate.next() == pytest.approx(4 * MIB / 1.0)


def test_a_failure_counts_as_one_and_says_nothing_of_speed() -> None:
    meter = LinkMeter()
    meter.begin(PEER, 0.0, up=True)
    meter.end(PEER, 0.0, 20.0, None, up=True, well=False)
    assert not meter.up.rate.known
    assert meter.rtt_s(PEER) == 0.0
    assert meter.failed() > 0


def test_jitter_is_the_change_between_round_trips() -> None:
    meter = LinkMeter()
    for number in range(40):
        meter.round_trip(PEER, 0.1 + 0.02 * (number % 2))
        meter.round_trip(OTHER, 0.1)
    near = {fact.node: fact for fact in meter.facts([PEER, OTHER])}
    assert near[PEER].jitter_s == pytest.approx(0.02, rel=0.1)
    assert near[OTHER].jitter_s == pytest.approx(0.0)


def test_memory_is_bounded() -> None:
    meter = LinkMeter()
    for number in range(2 * MAX_PEERS):
        meter.round_trip(NodeId(f"{number:064x}"), 0.1)
    assert len(meter.nodes()) == MAX_PEERS


def test_a_round_trip_that_opened_a_connection_does_not_count_for_long() -> None:
    meter = LinkMeter()
    for seconds in (0.4, 0.1, 0.1, 0.4, 0.1):
        meter.round_trip(PEER, seconds)
    assert meter.rtt_s(PEER) == pytest.approx(0.1)
