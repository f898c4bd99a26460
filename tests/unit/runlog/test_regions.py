"""What an entry with regions may say, and what the view has of it."""

import msgspec
import pytest

from shoal.base.ids import NodeId, RunId
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import PlannedRegion, Regions

from .small_log import Clerk, genesis_of, small_recipe


def node(number: int) -> NodeId:
    return NodeId(f"{number:040x}")


def region(number: int, hub: int, *others: int, heirs: tuple[int, ...] = ()) -> PlannedRegion:
    members = tuple(map(node, (hub, *others)))
    return PlannedRegion(number=number, hub=node(hub), members=members, heirs=tuple(map(node, heirs)))


def regions(*items: PlannedRegion, reason: str = "near") -> Regions:
    return Regions(items=items, reason=reason)


def founded() -> Clerk:
    clerk = Clerk()
    clerk.found()
    clerk.append(regions(region(1, 1, 2, heirs=(2,)), region(2, 3)))
    return clerk


def test_the_last_ones_stand_and_numbers_are_never_given_again() -> None:
    clerk = founded()
    assert clerk.view.last_region == 2
    clerk.append(regions(region(2, 3, 1, 2)))
    clerk.append(regions(region(2, 3), region(3, 1, 2)))
    assert clerk.view.regions == regions(region(2, 3), region(3, 1, 2)) and clerk.view.last_region == 3
    clerk.append(regions())
    assert clerk.view.last_region == 3


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (regions(region(3, 4, 5), region(4, 5)), "in two regions"),
        (regions(region(3, 4, 4)), "in two regions"),
        (regions(region(3, 4), region(3, 5)), "two regions of one number"),
        (regions(msgspec.structs.replace(region(3, 4), hub=node(9))), "led by strangers"),
        (regions(region(3, 4, heirs=(4,))), "led by strangers"),
        (regions(region(3, 4, heirs=(9,))), "led by strangers"),
        (regions(region(1, 2, 1)), "another hub"),
        (regions(region(0, 4)), "another hub"),
        (regions(msgspec.structs.replace(region(3, 4), members=(node(4), NodeId("x")))), "no node"),
        (regions(msgspec.structs.replace(region(3, 4), reason="x" * 201)), "too long"),
        (regions(region(3, 4), reason="x" * 201), "too long"),
        (regions(region(3, *range(10_001))), "too many"),
    ],
)
def test_what_is_refused(body: Regions, why: str) -> None:
    with pytest.raises(BadEntry, match=why):
        founded().append(body)


def test_a_region_has_none_of_its_own() -> None:
    clerk = Clerk()
    clerk.append(msgspec.structs.replace(genesis_of(small_recipe()), parent=RunId("9" * 32)))
    with pytest.raises(BadEntry, match="region's own members"):
        clerk.append(regions(region(1, 1)))
