"""Regions as machines and hubs come and go: who leads, who follows, and who stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shoal.base.ids import NodeId
from shoal.planner.regrouping import Machine, Pooled, ideal_regions, regroup
from shoal.runlog.entries import PlannedRegion, Regions
from shoal.runlog.rules import MAX_TEXT

from .question import fact, node

WEST, EAST = (0, 1, 2), (3, 4, 5)


def rtt_s(one: NodeId, two: NodeId) -> float:
    """20 ms inside west and east, 90 ms across."""
    return 0.02 if (int(one, 16) < 3) == (int(two, 16) < 3) else 0.09


def machine(number: int, **values: Any) -> Machine:
    """The first of west and east has the best uplink, the last of each cannot be reached."""
    up_bytes_s = 5e7 / (1 + number % 3)
    usual = Machine(facts=fact(number, up_bytes_s=up_bytes_s), able=number % 3 < 2)
    return replace(usual, **values)


def pooled(*numbers: int, **values: Any) -> Pooled:
    return Pooled(**{"machines": {node(n): machine(n) for n in numbers}, "rtt_s": rtt_s, **values})


def after(decided: Regions | None, **values: Any) -> Pooled:
    """The same pool with this decided, and then something else."""
    assert decided is not None
    last = max(item.number for item in decided.items)
    return pooled(*values.pop("numbers", (*WEST, *EAST)), standing=decided.items, last=last, **values)


def shape(decided: Regions | None) -> dict[int, tuple[int, tuple[int, ...]]]:
    """By number, hub and members."""
    assert decided is not None
    return {
        item.number: (int(item.hub, 16), tuple(int(one, 16) for one in item.members))
        for item in decided.items
    }


BOTH = {1: (0, WEST), 2: (3, EAST)}


def test_regions_begin_with_hubs_that_can_be_reached_and_their_heirs() -> None:
    decided = regroup(pooled(*WEST, *EAST))
    assert shape(decided) == BOTH
    assert decided is not None and [item.heirs for item in decided.items] == [(node(1),), (node(4),)]
    assert "hub by uplink and uptime" in decided.items[0].reason
    assert regroup(after(decided)) is None, "as it stands"


def test_a_lost_hub_has_an_heir_who_begins_a_region_of_another_number() -> None:
    first = regroup(pooled(*WEST, *EAST))
    decided = regroup(after(first, numbers=(1, 2, *EAST), lost={node(0): "was silent for 15 s"}))
    assert shape(decided) == {2: (3, EAST), 3: (1, (1, 2))}
    assert decided is not None and "was silent for 15 s: its heir is" in decided.reason
    assert decided.items[1].reason == "in the place of region 1, whose hub was silent for 15 s"
    back = regroup(after(decided))
    assert shape(back) == {2: (3, EAST), 3: (1, WEST)}, "the old hub comes back as a member"
    assert back is not None and back.items[1].heirs == (node(0),)


def test_a_hub_that_does_not_come_up_stays_as_a_member() -> None:
    first = regroup(pooled(*WEST, *EAST))
    decided = regroup(after(first, lost={node(0): "was not in the run"}))
    assert shape(decided) == {2: (3, EAST), 3: (1, WEST)}


def test_without_an_heir_its_machines_go_to_the_nearest_region() -> None:
    first = regroup(pooled(*WEST, *EAST))
    decided = regroup(after(first, numbers=(2, *EAST)))
    assert shape(decided) == {2: (3, (2, *EAST))}
    assert decided is not None and "nobody can take over" in decided.reason


def test_where_nobody_can_be_reached_there_are_no_regions() -> None:
    assert regroup(pooled(2, 5)) is None
    first = regroup(pooled(*WEST))
    none_left = regroup(after(first, numbers=(2,)))
    assert none_left is not None and none_left.items == ()


def test_newcomers_go_where_they_are_near_or_begin_a_region() -> None:
    first = regroup(pooled(*WEST))
    assert shape(first) == {1: (0, WEST)}
    assert shape(regroup(after(first, numbers=(*WEST, 4)))) == {1: (0, WEST), 2: (4, (4,))}
    assert shape(regroup(after(first, numbers=(*WEST, 5)))) == {1: (0, (*WEST, 5))}, "it cannot lead one"


def test_small_differences_move_nobody_and_large_ones_do() -> None:
    first = regroup(pooled(*WEST, *EAST))

    def moved(trip_s: float) -> Any:
        """Machine 2 is now this far from the east, as far from the west as it was."""

        def trips(one: NodeId, two: NodeId) -> float:
            pair = {int(one, 16), int(two, 16)}
            return trip_s if 2 in pair and pair & {*EAST} else rtt_s(one, two)

        return trips

    assert regroup(after(first, rtt_s=moved(0.012), may_move=True)) is None
    assert regroup(after(first, rtt_s=moved(0.002))) is None, "not so soon"
    decided = regroup(after(first, rtt_s=moved(0.002), may_move=True))
    assert shape(decided) == {1: (0, (0, 1)), 2: (3, (2, *EAST))}
    assert decided is not None and "is nearer to region 2 than to 1" in decided.reason


def test_hubs_are_not_moved() -> None:
    first = regroup(pooled(*WEST, *EAST))

    def trips(one: NodeId, two: NodeId) -> float:
        """All are next to one another now but 2, which is far from everybody."""
        return 0.09 if node(2) in (one, two) else 0.01

    machines = {node(n): machine(n, able=True) for n in (*WEST, *EAST)}
    decided = regroup(after(first, machines=machines, rtt_s=trips, may_move=True))
    assert shape(decided) == {1: (0, (0, 2)), 2: (3, (1, *EAST))}, "1 goes, the hub stays with its region"


def test_owners_words_count_more_than_round_trips() -> None:
    labels = {0: "a", 1: "b", 2: "a", 3: "a", 4: "b"}
    machines = {node(n): machine(n, label=label) for n, label in labels.items()}
    assert shape(regroup(pooled(machines=machines))) == {1: (0, (0, 2, 3)), 2: (1, (1, 4))}
    # Who says nothing and cannot lead goes to the nearest of them.
    machines[node(5)] = machine(5)
    assert sorted(len(one.members) for one in ideal_regions(pooled(machines=machines))) == [3, 3]


def test_reasons_fit_into_the_log() -> None:
    numbers = range(0, 120, 3)
    machines = {node(n): machine(n, label=f"place {n}") for n in numbers}
    decided = regroup(pooled(machines=machines))
    assert decided is not None and len(decided.items) == 40
    assert len(decided.reason) <= MAX_TEXT and decided.reason.endswith("...")


def test_the_same_input_gives_the_same_regions_in_whatever_order() -> None:
    machines = {node(n): machine(n) for n in reversed((*WEST, *EAST))}
    assert regroup(pooled(machines=machines)) == regroup(pooled(*WEST, *EAST))


def test_heirs_stay_in_their_order_while_nobody_comes_or_goes() -> None:
    standing = (
        PlannedRegion(number=1, hub=node(0), members=(node(0), node(1), node(3)), heirs=(node(3), node(1))),
    )
    numbers = (0, 1, 3)
    assert regroup(pooled(*numbers, standing=standing, last=1, rtt_s=lambda one, two: 0.01)) is None
