"""What machines say, when it is decided on, and where each belongs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from shoal.base.ids import NodeId
from shoal.planner import region_pool
from shoal.planner.pool import ASK_AGAIN_S
from shoal.planner.region_pool import EACH_S, STARTS_S, Place, RegionPool, Word
from shoal.runlog.entries import Regions
from shoal.runlog.view import RunView

LEASE_S = 10.0


def node(number: int) -> NodeId:
    return NodeId(f"{number:040x}")


def address(number: int) -> str:
    return f"host-{number}:4000"


class Coordinator:
    """A pool, the log that its decisions go into, and the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.view = RunView()
        self.start()

    def start(self) -> None:
        self.pool = RegionPool(LEASE_S, self.now)

    def offer(self, *numbers: int, **said: Any) -> None:
        for number in numbers:
            usual = {"address": address(number), "label": "west" if number < 3 else "east"}
            self.pool.offer(Word(node=node(number), **{**usual, **said}), self.view, self.now)

    def decide(self, live: Collection[int] = ()) -> Regions | None:
        decided = self.pool.decide(self.view, {node(number) for number in live}, self.now)
        if decided is not None:
            self.view.regions = decided
            self.view.last_region = max([self.view.last_region, *(item.number for item in decided.items)])
        return decided

    def passes(self, seconds: float, *numbers: int, live: Collection[int] = ()) -> list[Regions]:
        """So long, in which these offer themselves again and again; what is decided meanwhile."""
        found, until = [], self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + self.pool.ask_again_s)
            self.offer(*numbers)
            found += [decided] if (decided := self.decide(live)) else []
        return found

    def place(self, number: int) -> Place:
        return self.pool.place(node(number), self.view)

    def hubs(self) -> list[int]:
        return [int(item.hub, 16) for item in self.view.regions.items] if self.view.regions else []


@pytest.fixture
def there() -> Coordinator:
    """With two regions: 0 leads 0 and 1, 3 leads 3 and 4."""
    made = Coordinator()
    made.passes(2 * LEASE_S, 0, 1, 3, 4)
    assert made.hubs() == [0, 3]
    return made


def test_the_first_decision_waits_until_nobody_comes_any_more() -> None:
    there = Coordinator()
    assert there.passes(0.9 * LEASE_S, 0, 1) == []
    assert there.passes(LEASE_S, 0, 1, 3) == []
    assert "about to be given" in there.place(0).reason
    (decided,) = there.passes(1.1 * LEASE_S, 0, 1, 3)
    assert [len(item.members) for item in decided.items] == [2, 1]


def test_a_hub_is_told_to_lead_and_its_ticket_goes_to_its_machines_only(there: Coordinator) -> None:
    assert there.place(0).leads and there.place(1).ticket is None
    assert "not ready yet" in there.place(1).reason
    number = there.place(0).region
    assert number is not None
    there.offer(3, 1, serves=number, ticket="a liar's")
    assert there.place(1).ticket is None, "only the hub's own word counts"
    there.offer(0, serves=number, ticket="the region's")
    assert there.place(1).ticket == there.place(0).ticket == "the region's"
    assert there.place(3).ticket is None and there.place(4).ticket is None


def test_a_silent_hub_is_replaced_after_a_lease(there: Coordinator) -> None:
    there.passes(LEASE_S, 0, 1, 3, 4, live=(0, 3))
    assert there.passes(0.9 * LEASE_S, 1, 3, 4, live=(3,)) == []
    (decided,) = there.passes(0.5 * LEASE_S, 1, 3, 4, live=(3,))
    assert there.hubs() == [3, 1] and "was silent for 10 s: its heir is" in decided.reason
    assert there.place(1).leads and there.place(1).ticket is None, "its region's ticket is another"


def test_a_hub_that_is_in_the_run_stays_though_its_machine_is_silent(there: Coordinator) -> None:
    assert there.passes(5 * LEASE_S, 1, 3, 4, live=(0, 3)) == []


def test_a_hub_whose_machine_is_there_has_time_to_come_up_and_no_more(there: Coordinator) -> None:
    assert there.passes(STARTS_S - 2 * LEASE_S, 0, 1, 3, 4, live=(3,)) == []
    there.passes(3 * LEASE_S, 0, 1, 3, 4, live=(3,))
    assert there.hubs() == [3, 1] and there.place(0).region == there.place(1).region


def test_a_hub_that_its_machines_cannot_reach_is_replaced(there: Coordinator) -> None:
    def others_say(trip_s: float) -> None:
        for _ in range(15):
            there.passes(LEASE_S, 0, 3, live=(0, 3))
            there.offer(1, 4, trips={node(0): trip_s, node(3): 0.01})

    others_say(0.01)
    assert there.hubs() == [0, 3]
    others_say(0.0)
    assert there.hubs() == [3, 1] and there.place(0).region == there.place(1).region


def test_after_a_start_of_the_coordinator_the_log_goes_on_and_everybody_may_come_back(
    there: Coordinator,
) -> None:
    before = there.view.regions
    there.start()
    assert there.passes(1.5 * LEASE_S) == [] and there.place(1).region is not None
    assert there.passes(2 * LEASE_S, 0, 1, 3, 4, live=(0, 3)) == []
    assert there.view.regions == before


def test_members_come_and_go_a_while_after_the_last_decision(there: Coordinator) -> None:
    there.passes(LEASE_S, 0, 1, 3, 4, live=(0, 3))
    (decided,) = there.passes(2 * LEASE_S + 5 * EACH_S + 1, 0, 1, 2, 3, 4, live=(0, 3))
    assert there.place(2).region == there.place(0).region and "1 came to region 1" in decided.reason
    there.pool.withdraw(node(2))
    (decided,) = there.passes(2 * LEASE_S, 0, 1, 3, 4, live=(0, 3))
    assert there.place(2).region is None and "1 left region 1" in decided.reason


def test_an_address_that_nobody_can_reach_makes_no_hub() -> None:
    there = Coordinator()
    for _ in range(8):
        there.now += LEASE_S / 4
        there.offer(0, label="", up_bytes_s=1e9, trips={node(0): 0.02, node(1): 0.02})
        there.offer(1, label="", trips={node(0): 0.0})
        there.offer(2, label="", address="", trips={node(0): 0.0, node(1): 0.02})
        there.decide()
    assert there.hubs() == [1], "0 has the best uplink, and the others cannot connect to it"


def test_regions_follow_measured_round_trips() -> None:
    there = Coordinator()
    for _ in range(8):
        there.now += LEASE_S / 4
        for number in range(5):
            near = {other for other in range(5) if (other < 3) == (number < 3)}
            trips = {node(other): 0.01 if other in near else 0.12 for other in range(5) if other != number}
            there.offer(number, label="", trips=trips)
        there.decide()
    assert there.view.regions is not None
    assert [len(item.members) for item in there.view.regions.items] == [3, 2]
    assert "ms of one another" in there.view.regions.items[0].reason


def test_who_has_not_measured_yet_waits() -> None:
    there = Coordinator()
    there.offer(0, label="")
    there.offer(1, label="")
    there.decide()
    assert set(there.pool.probes(node(1))) == {node(0)}
    there.now += 1.5 * LEASE_S
    assert there.decide() is None
    for _ in range(2):
        there.now += LEASE_S / 2
        there.offer(0, label="", trips={node(1): 0.01})
        there.offer(1, label="", trips={node(0): 0.01})
    assert there.decide() is not None


def test_everybody_is_probed_in_turn_a_few_at_a_time() -> None:
    there = Coordinator()
    there.offer(*range(30))
    there.decide()
    told = [there.pool.probes(node(0)) for _ in range(30)]
    assert max(map(len, told)) == 8
    assert {other for probes in told for other in probes} == {node(number) for number in range(1, 30)}


def test_without_anybody_who_can_be_reached_it_says_what_is_missing() -> None:
    there = Coordinator()
    there.offer(0, 1, address="")
    there.now += 2 * LEASE_S
    assert there.decide() is None and "--hub-address" in there.place(0).reason


def test_offers_are_made_often_enough_for_the_lease() -> None:
    assert RegionPool(1.5, 0.0).ask_again_s == 0.5
    assert RegionPool(3600.0, 0.0).ask_again_s == ASK_AGAIN_S


def test_after_a_pause_everybody_may_come_back_before_anything_is_decided(there: Coordinator) -> None:
    there.passes(LEASE_S, 0, 1, 3, 4, live=(0, 3))
    for number in (0, 1, 3, 4):
        there.pool.withdraw(node(number))  # What a paused run does to whoever asks.
    there.now += 2 * STARTS_S
    assert there.passes(1.5 * LEASE_S, 1) == []
    assert there.passes(1.5 * LEASE_S, 0, 1, 3, 4, live=(0, 3)) == []
    assert there.hubs() == [0, 3]


def test_a_hub_that_is_in_the_run_stays_though_it_says_nothing_to_the_pool(there: Coordinator) -> None:
    there.start()
    assert there.passes(5 * LEASE_S, 0, 1, 4, live=(0, 3)) == []
    assert there.hubs() == [0, 3] and there.place(4).region == 2


def test_of_those_who_left_only_so_many_are_remembered(
    there: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_pool, "GONE_KEPT", 3)
    for number in range(10, 20):
        there.offer(number, trips={node(0): 0.01})
        there.pool.withdraw(node(number))
    known = there.pool._telemetry._seen
    assert {node(number) for number in range(10, 20)} & known.keys() == {node(n) for n in (17, 18, 19)}
