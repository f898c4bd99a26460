"""Regions by round trips, and their hubs."""

from __future__ import annotations

import random

from shoal.base.ids import NodeId
from shoal.measure.telemetry import Telemetry
from shoal.planner.regions import find_regions
from shoal.wire.messages import PeerVitals, Vitals

from .question import fact, node

CONTINENTS = {0: (0, 1, 2), 1: (3, 4, 5), 2: (6, 7)}
"""As in the lab's `continental`: 20 ms inside a region, 45 to 90 across."""


def region_of(number: int) -> int:
    return next(region for region, numbers in CONTINENTS.items() if number in numbers)


def rtt_s(one: NodeId, two: NodeId) -> float:
    across = {0: 0.02, 1: 0.048, 2: 0.09}
    return across[abs(region_of(int(one, 16)) - region_of(int(two, 16)))]


FACTS = {node(n): fact(n) for n in range(8)}


def test_near_machines_are_one_region() -> None:
    found = find_regions(FACTS, rtt_s)
    assert [region.members for region in found] == [
        tuple(node(n) for n in numbers) for numbers in CONTINENTS.values()
    ]
    assert all("ms of one another" in region.reason for region in found)


def test_the_order_of_nodes_does_not_matter() -> None:
    shuffled = dict(random.Random(1).sample(list(FACTS.items()), len(FACTS)))
    assert find_regions(shuffled, rtt_s) == find_regions(FACTS, rtt_s)


def test_the_hub_has_uplink_and_uptime_and_is_replaced_when_it_dies() -> None:
    facts = {**FACTS, node(1): fact(1, up_bytes_s=5e7), node(2): fact(2, up_bytes_s=9e7, uptime=0.8)}
    region = find_regions(facts, rtt_s)[0]
    assert region.hub == node(1)
    assert region.hub_of({node(0), node(2)}) == region.heirs[0]
    assert region.hub_of(set()) is None


def test_thin_downlinks_are_named() -> None:
    facts = {**FACTS, node(4): fact(4, down_bytes_s=1e6)}
    assert find_regions(facts, rtt_s)[1].thin == (node(4),)


def test_what_is_not_known_is_a_region_by_itself_and_nobody_is_lost() -> None:
    def partly(one: NodeId, two: NodeId) -> float | None:
        return None if node(7) in (one, two) else rtt_s(one, two)

    found = find_regions(FACTS, partly)
    assert sorted(member for region in found for member in region.members) == sorted(FACTS)
    assert (node(7),) in [region.members for region in found]
    assert find_regions({}, rtt_s) == ()


def test_from_what_nodes_report_a_few_pairs_each() -> None:
    telemetry, rng = Telemetry(), random.Random(3)
    for _ in range(30):
        for one in FACTS:
            peers = rng.sample([other for other in FACTS if other != one], 3)
            told = tuple(PeerVitals(peer, rtt_s(one, peer), 0.0, 0.0) for peer in peers)
            telemetry.heard(one, Vitals(peers=told), FACTS)
    assert find_regions(FACTS, telemetry.rtt_s) == find_regions(FACTS, rtt_s)


def test_many_nodes_are_grouped_too() -> None:
    facts = {node(n): fact(n) for n in range(200)}

    def across(one: NodeId, two: NodeId) -> float:
        return 0.02 if int(one, 16) % 3 == int(two, 16) % 3 else 0.15

    found = find_regions(facts, across)
    assert [len(region.members) for region in found] == [67, 67, 66]
