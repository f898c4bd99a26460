"""What a node tells, and what is believed of it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.ids import NodeId
from shoal.measure.reporting import MAX_PEERS_TOLD, NodeMeter, believable
from shoal.measure.telemetry import Telemetry
from shoal.wire.messages import Heartbeat, PeerVitals, Vitals, decode, encode

COORDINATOR, NODE = NodeId("c" * 64), NodeId("d" * 64)
PEERS = [NodeId(f"{number:064x}") for number in range(20)]


def test_a_heartbeat_answered_is_a_round_trip() -> None:
    meter = NodeMeter(COORDINATOR)
    probe = meter.beat(10.0)
    meter.answered(probe, 10.12)
    meter.answered(probe, 99.0)
    meter.answered(12345, 99.0)
    assert meter.vitals(11.0, 0, 0.0).rtt_s == pytest.approx(0.12)


def test_all_peers_are_told_in_turn_few_at_a_time() -> None:
    meter = NodeMeter(COORDINATOR)
    for peer in PEERS:
        meter.links.round_trip(peer, 0.1)
    told = [meter.vitals(0.0, 0, 0.0).peers for _ in range(3)]
    assert all(len(peers) == MAX_PEERS_TOLD for peers in told)
    assert {peer.node for peers in told for peer in peers} == set(PEERS)


def test_vitals_travel_in_a_small_heartbeat() -> None:
    meter = NodeMeter(COORDINATOR)
    for peer in PEERS:
        meter.links.round_trip(peer, 0.1)
    beat = Heartbeat(at=1, length=2, peers=3, doing="training", vitals=meter.vitals(0.0, 1 << 33, 0.01))
    frame = encode(beat)
    assert decode(frame) == beat
    assert len(frame) < 2000


numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.builds(
        Vitals,
        step_s=numbers,
        batch=st.integers(-(2**60), 2**60),
        memory_bytes=st.integers(-(2**60), 2**60),
        uptime_s=numbers,
        rtt_s=numbers,
        jitter_s=numbers,
        loss=numbers,
        failed=numbers,
        up_bytes_s=numbers,
        down_bytes_s=numbers,
        peers=st.lists(
            st.builds(PeerVitals, st.sampled_from(PEERS), numbers, numbers, numbers), max_size=30
        ).map(tuple),
    )
)
def test_whatever_a_stranger_says_is_bounded(told: Vitals) -> None:
    found = believable(told, frozenset(PEERS[:5]))
    values = [found.step_s, found.uptime_s, found.rtt_s, found.jitter_s, found.up_bytes_s, found.down_bytes_s]
    assert all(math.isfinite(value) and value >= 0 for value in values)
    assert 0 <= found.loss <= 1 and 0 <= found.failed <= 1
    assert len(found.peers) <= MAX_PEERS_TOLD
    assert {peer.node for peer in found.peers} <= set(PEERS[:5])
    telemetry = Telemetry()
    telemetry.heard(NODE, told, PEERS)
    facts = telemetry.facts(NODE)
    assert math.isfinite(facts.step_s) and math.isfinite(facts.up_bytes_s)


def test_one_false_report_does_not_outlast_true_ones() -> None:
    telemetry = Telemetry()
    telemetry.heard(NODE, Vitals(step_s=1e9, batch=8), PEERS)
    for _ in range(12):
        telemetry.heard(NODE, Vitals(step_s=0.2, batch=8), PEERS)
    assert telemetry.facts(NODE).step_s < 1.0


def test_absence_lowers_uptime_and_misses_lower_delivery() -> None:
    telemetry = Telemetry()
    telemetry.look([NODE], 0.0)
    telemetry.look([NODE], 40.0)
    assert telemetry.facts(NODE).uptime == 1.0
    telemetry.look([], 140.0)
    assert telemetry.facts(NODE).uptime == pytest.approx(0.5)
    telemetry.delivered(NODE, in_time=False)
    assert telemetry.facts(NODE).delivered < 0.8


def test_rejected_and_outlying_updates_are_worth_less() -> None:
    telemetry = Telemetry()
    good = {peer: 1.0 for peer in PEERS[:5]}
    for _ in range(5):
        telemetry.judged({**good, NODE: 30.0}, rejected=[PEERS[9]])
    assert telemetry.facts(PEERS[0]).quality == 1.0
    assert telemetry.facts(NODE).quality < 0.5
    assert telemetry.facts(PEERS[9]).quality < 0.5


def test_a_value_that_changes_once_and_stays_is_believed() -> None:
    telemetry, rng = Telemetry(), random.Random(4)
    for _ in range(50):
        telemetry.heard(NODE, Vitals(up_bytes_s=1e7 * (0.8 + 0.4 * rng.random())), PEERS)
    for _ in range(10):
        telemetry.heard(NODE, Vitals(up_bytes_s=1e6), PEERS)
    assert telemetry.facts(NODE).up_bytes_s < 2e6
