"""Claims offered to the coordinator: kept, refused, weighed, and whose word counts for their storage."""

from typing import Any

import msgspec
import pytest
from runlog.small_log import (
    BATCH,
    COORDINATOR,
    NODES,
    OTHER_RUN,
    STEPS,
    STRANGER,
    blob_id,
    make_claim,
    make_offer,
    make_receipt,
    small_recipe,
)

from shoal.coordinator.events import (
    Append,
    BlobFetched,
    Drop,
    Keep,
    Send,
)
from shoal.runlog.entries import (
    DataRange,
    Head,
    Plan,
    Seal,
)
from shoal.wire.messages import (
    Offer,
)
from shoal.wire.signed import Signed, sign

from .desk import Desk, members, open_round

A, B, C, D = NODES[:4]


def test_a_claim_is_kept_before_it_is_acknowledged_and_the_last_one_seals() -> None:
    desk = open_round(A, B)
    assert desk.offer(A).kept
    order = [type(effect) for effect in desk.effects]
    assert order.index(Keep) < order.index(Send) and desk.view.round == 0
    assert desk.machine.waiting_for == "1 of 2 updates"
    assert desk.offer(B).kept
    order = [type(effect) for effect in desk.effects]
    assert order.index(Append) < order.index(Drop)
    seal, plan = desk.appended()
    assert isinstance(seal, Seal) and isinstance(plan, Plan)
    assert [item.weight for item in seal.accepted] == [STEPS * BATCH] * 2
    nodes = [update.claim.node for update in desk.view.path[0].updates]
    assert nodes == sorted((A.node, B.node)), "in the order of their ids"
    assert {drop.key for drop in desk.wanted(Drop)} == set(desk.kept)
    assert plan.round == 1 and seal.reason == "2 of 2 updates"
    desk.check()


DEFECTS: dict[str, dict[str, Any]] = {
    "another run": {"run": OTHER_RUN},
    "an old sequence": {"sequence": -1},
    "another base": {"base": ((0, 1), (1, 1))},
    "half the base": {"base": ((0, 0),)},
    "not planned": {"plan": 1},
    "another round": {"round": 4},
    "another head": {"head": Head(1, "0" * 64)},
    "a future head": {"head": Head(77, "0" * 64)},
    "no samples": {"samples": 0, "data": ()},
    "more samples than counters": {"samples": 99},
    "somebody else's samples": {"data": (DataRange(STEPS * BATCH, STEPS * BATCH),)},
    "somebody else's samples first": {
        "samples": 2 * STEPS * BATCH,
        "data": (DataRange(STEPS * BATCH, STEPS * BATCH), DataRange(0, STEPS * BATCH)),
    },
    "no steps": {"steps": 0},
    "no size": {"size_bytes": 0},
    "in another's name": {"node": B.node},
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_claim_with_a_defect_is_refused_with_a_reason_and_never_kept(defect: str) -> None:
    desk = open_round(A, B)
    ack = desk.offer(A, **DEFECTS[defect])
    assert not ack.kept and ack.reason and not ack.retry
    assert desk.wanted(Keep) == [] and desk.kept == {} and desk.wanted(Append) == []
    assert desk.offer(A).kept, "a good one is still welcome"


RECEIPTS = {
    "none": lambda blob: (),
    "its own": lambda blob: (make_receipt(A, blob),),
    "a stranger's": lambda blob: (make_receipt(STRANGER, blob),),
    "for another blob": lambda blob: (make_receipt(COORDINATOR, blob_id("other")),),
    "for another run": lambda blob: (make_receipt(COORDINATOR, blob, run=OTHER_RUN),),
    "in another's name": lambda blob: (make_receipt(B, blob, holder=COORDINATOR.node),),
    "one good, one bad": lambda blob: (make_receipt(B, blob), make_receipt(STRANGER, blob)),
    "one twice": lambda blob: (make_receipt(B, blob), make_receipt(B, blob)),
    "noise": lambda blob: (Signed(b"\xc1", b"x" * 64),),
}


@pytest.mark.parametrize("case", RECEIPTS)
def test_a_claim_without_sound_receipts_is_refused(case: str) -> None:
    desk = open_round(A, B)
    claim = make_claim(desk.view, A)
    ack = desk.offer(A, Offer(claim=sign(A, claim), receipts=RECEIPTS[case](claim.blob)))
    assert not ack.kept and ack.reason and ack.sequence == claim.sequence
    assert desk.kept == {}


def test_a_claim_that_another_signed_is_refused() -> None:
    desk = open_round(A, B)
    claim = make_claim(desk.view, A)
    forged = Offer(claim=sign(B, claim), receipts=(make_receipt(COORDINATOR, claim.blob),))
    assert not desk.offer(A, forged).kept
    honest = make_offer(desk.view, A)
    assert not desk.offer(B, honest).kept, "somebody else brings it"
    assert not desk.offer(A, Offer(claim=Signed(b"", b""), receipts=())).kept
    assert desk.kept == {}


def test_two_receipts_are_wanted_where_two_can_be_had() -> None:
    recipe = small_recipe(membership=members(3), storage={"receipts": 2})
    desk = open_round(A, B, C, recipe=recipe)
    claim = make_claim(desk.view, A)
    one, two = make_receipt(B, claim.blob), make_receipt(C, claim.blob)
    refused = desk.offer(A, Offer(claim=sign(A, claim), receipts=(one,)))
    assert not refused.kept and "1 of 2 storage receipts" in refused.reason
    assert refused.retry, "it is not the claim that is wrong"
    assert desk.offer(A, Offer(claim=sign(A, claim), receipts=(one, two))).kept


def test_who_finds_too_few_holders_for_a_lease_needs_only_the_coordinator() -> None:
    recipe = small_recipe(membership=members(3), storage={"receipts": 2})
    desk = open_round(A, B, C, recipe=recipe)
    lease_s = recipe.membership.lease_s
    held = make_offer(desk.view, A, COORDINATOR)
    assert not desk.offer(A, held).kept, "B and C may yet take it"
    for _ in range(3):
        desk.tick(lease_s / 3)
        desk.beat(A, B, C)
    assert not desk.offer(A, make_offer(desk.view, A, B)).kept, "the coordinator does not have it"
    assert not desk.offer(B, make_offer(desk.view, B, COORDINATOR)).kept, "B is short only since now"
    assert desk.offer(A, held).kept
    for node in (B, C):
        claim = make_claim(desk.view, node)
        both = (make_receipt(COORDINATOR, claim.blob), make_receipt(A, claim.blob))
        assert desk.offer(node, Offer(claim=sign(node, claim), receipts=both)).kept
    desk.beat(A, B, C)
    assert desk.view.round == 1
    assert desk.offer(A, make_offer(desk.view, A, COORDINATOR)).kept, "it need not wait with every update"
    desk.check()


def test_alone_one_receipt_is_all_that_can_be_had() -> None:
    desk = open_round(A, recipe=small_recipe(storage={"receipts": 2}))
    assert desk.offer(A).kept


def test_a_duplicate_is_acknowledged_again_and_another_claim_refused() -> None:
    desk = open_round(A, B)
    offer = make_offer(desk.view, A)
    assert desk.offer(A, offer).kept
    again = desk.offer(A, offer)
    assert again.kept and "already" in again.reason and desk.wanted(Keep) == []
    other = desk.offer(A, sequence=5)
    assert not other.kept and "another claim" in other.reason and len(desk.kept) == 1


def test_a_settled_claim_is_not_taken_again() -> None:
    desk = open_round(A, B)
    offer = make_offer(desk.view, A)
    desk.offer(A, offer)
    desk.offer(B)
    late = desk.offer(A, offer)
    assert not late.kept and late.reason
    desk.check()


def test_a_claims_weight_is_its_samples() -> None:
    desk = open_round(A, B)
    half = STEPS * BATCH // 2
    offer = make_offer(
        desk.view,
        A,
        samples=half,
        tokens=half,
        data=(DataRange(desk.view.planned[A.node][desk.view.plan_position].data.start, half),),
    )
    assert desk.offer(A, offer).kept
    desk.offer(B)
    seal = next(body for body in desk.appended() if isinstance(body, Seal))
    weights = {u.claim.node: u.weight for u in desk.view.path[0].updates}
    assert weights == {A.node: half, B.node: STEPS * BATCH}
    assert msgspec.msgpack.encode(seal)
    desk.check()


def test_needed_blobs_hold_the_kept_claims() -> None:
    desk = open_round(A, B)
    assert desk.offer(A).kept
    claim = make_claim(desk.view, A)
    assert claim.blob in desk.machine.needed_blobs()


# --- after a withheld update ------------------------------------------------------------------------------


def _withheld(*nodes: Any, recipe: Any = None) -> Desk:
    """The first node's update was sealed with the second's receipt, and then nobody had it."""
    desk = open_round(*nodes, recipe=recipe)
    for node, holder in zip(nodes, [nodes[1], *[COORDINATOR] * len(nodes)], strict=False):
        assert desk.offer(node, make_offer(desk.view, node, holder)).kept
    at, update = desk.view.at, desk.view.path[0].updates[0].claim
    assert update.node == nodes[0].node
    desk.step(BlobFetched(at=at, blob=update.blob, size_bytes=None))
    assert desk.view.at == 0
    desk.beat(*nodes)
    assert desk.view.plan is not None
    return desk


def test_after_a_withheld_update_its_author_must_show_the_coordinators_receipt() -> None:
    desk = _withheld(A, B, C)
    refused = desk.offer(A, make_offer(desk.view, A, C))
    assert not refused.kept and refused.retry and "the coordinator itself must hold" in refused.reason
    assert desk.offer(A, make_offer(desk.view, A, COORDINATOR)).kept
    desk.check()


def test_after_a_withheld_update_its_holders_word_counts_no_more() -> None:
    desk = _withheld(A, B, C)
    refused = desk.offer(C, make_offer(desk.view, C, B))
    assert not refused.kept and refused.retry and "0 of 1 storage receipts" in refused.reason
    assert desk.offer(C, make_offer(desk.view, C, COORDINATOR)).kept, "an honest node is not hurt"
    own = desk.offer(B, make_offer(desk.view, B, C))
    assert not own.kept and "the coordinator itself" in own.reason
    assert desk.offer(B, make_offer(desk.view, B, COORDINATOR)).kept


def test_two_receipts_are_not_demanded_of_those_who_cannot_be_believed() -> None:
    recipe = small_recipe(membership=members(3), storage={"receipts": 2})
    desk = open_round(A, B, C, recipe=recipe)
    claim = make_claim(desk.view, A)
    receipts = (make_receipt(B, claim.blob), make_receipt(C, claim.blob))
    assert desk.offer(A, Offer(claim=sign(A, claim), receipts=receipts)).kept
    for node in (B, C):
        other = make_claim(desk.view, node)
        held = (make_receipt(COORDINATOR, other.blob), make_receipt(A, other.blob))
        assert desk.offer(node, Offer(claim=sign(node, other), receipts=held)).kept
    desk.step(BlobFetched(at=desk.view.at, blob=claim.blob, size_bytes=None))
    desk.beat(A, B, C)
    for node in (A, B, C):
        assert desk.offer(node).kept, "only the coordinator is left to hold anything"
    desk.check()


def test_an_update_that_the_coordinator_vouched_for_does_not_make_it_distrust_itself() -> None:
    desk = open_round(A, B)
    at = desk.seal_round(A, B)
    for update in desk.view.path[0].updates:
        desk.step(BlobFetched(at=at, blob=update.claim.blob, size_bytes=None))
    desk.beat(A, B)
    desk.seal_round(A, B)
    desk.check()
