"""What may be grafted onto a region's log, and what it does there."""

import msgspec
import pytest

from shoal.base.ids import RunId
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Graft, Head, Rewind

from .small_log import NODES, Clerk, blob_id, genesis_of, small_recipe

A, B = NODES[:2]
PARENT = RunId("9" * 32)


def _graft(position: int = 3, **changes: object) -> Graft:
    graft = Graft(parent=Head(position, "c" * 64), blob=blob_id("graft", position), size_bytes=50)
    return msgspec.structs.replace(graft, **changes)


def _region(parent: RunId = PARENT) -> Clerk:
    clerk = Clerk()
    clerk.append(msgspec.structs.replace(genesis_of(small_recipe()), parent=parent))
    clerk.join(A, B)
    return clerk


def _round(clerk: Clerk, **changes: object) -> int:
    clerk.plan(A, B)
    return clerk.append(clerk.seal_body(A, B, **changes))


def test_a_graft_is_a_step_of_the_path_with_versions_of_its_own() -> None:
    clerk = _region()
    first = _round(clerk)
    at = clerk.append(_graft())
    view = clerk.view
    step = view.next_step(first)
    assert step is not None and step.position == at == view.at and step.graft == _graft()
    assert (step.updates, step.blobs, step.fragments) == ((), (blob_id("graft", 3),), (0, 1))
    assert view.versions == [2, 2] and view.round == 1 and view.totals.rounds == 1
    assert view.grafted == 3 and blob_id("graft", 3) in view.needed_blobs()
    clerk.plan(A, B)
    assert view.planned[A.node][view.plan_position].base == ((0, 2), (1, 2))


def test_a_rewind_takes_grafts_back() -> None:
    clerk = _region()
    first = _round(clerk)
    clerk.append(_graft(3))
    _round(clerk)
    clerk.append(_graft(5))
    assert clerk.view.grafted == 5
    clerk.append(Rewind(to=first, reason="asked"))
    assert clerk.view.grafted == -1
    clerk.append(_graft(4))


@pytest.mark.parametrize(
    ("graft", "why"),
    [
        (_graft(3), "not new"),
        (_graft(2), "not new"),
        (_graft(9, blob="../../etc"), "malformed"),
        (_graft(9, size_bytes=0), "malformed"),
        (_graft(9, size_bytes=10**9), "malformed"),
        (_graft(9, parent=Head(9, "no hash")), "malformed"),
    ],
)
def test_what_may_not_be_grafted(graft: Graft, why: str) -> None:
    clerk = _region()
    _round(clerk)
    clerk.append(_graft(3))
    with pytest.raises(BadEntry, match=why):
        clerk.append(graft)


def test_only_onto_a_region_and_between_rounds() -> None:
    clerk = _region(RunId(""))
    with pytest.raises(BadEntry, match="no region"):
        clerk.append(_graft())
    clerk = _region()
    clerk.plan(A, B)
    with pytest.raises(BadEntry, match="middle of a round"):
        clerk.append(_graft())


def test_not_before_pairs_have_a_common_state_again() -> None:
    clerk = _region()
    _round(clerk, pairs=True)
    with pytest.raises(BadEntry, match="rounds of pairs"):
        clerk.append(_graft())
    _round(clerk)
    clerk.append(_graft())
