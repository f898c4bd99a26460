"""The coordinator's machine, one event at a time."""

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
    Arrived,
    BlobFetched,
    Dismiss,
    Drop,
    FetchBlob,
    Keep,
    Lost,
    Prune,
    RewindAsked,
    Send,
    SendEntries,
    StopAsked,
    Tell,
)
from shoal.coordinator.machine import PATIENCE_LEASES
from shoal.runlog.entries import (
    Attestations,
    DataRange,
    Head,
    Joined,
    Left,
    Plan,
    Rewind,
    Seal,
    Snapshot,
    Stopped,
)
from shoal.wire.messages import (
    Beat,
    Entries,
    Goodbye,
    Heartbeat,
    NeedEntries,
    Offer,
    Peers,
    Rebuild,
    Stuck,
    Welcome,
)
from shoal.wire.signed import Signed, sign

from .desk import Desk, snapshot_of

A, B, C, D = NODES[:4]


def _open(*nodes: Any, recipe: Any = None) -> Desk:
    """A desk with an open round of these nodes."""
    desk = Desk(recipe or small_recipe(membership=_members(len(nodes))))
    desk.join(*nodes)
    assert desk.view.plan is not None and set(desk.view.planned) == {node.node for node in nodes}
    return desk


def _members(count: int) -> dict[str, Any]:
    return {"min_nodes": count, "lease_s": 6.0, "heartbeat_s": 1.0, "reconnect_s": 2.0}


# --- coming and going --------------------------------------------------------------------------------------


def test_a_newcomer_is_entered_welcomed_and_given_the_log() -> None:
    desk = Desk()
    desk.step(Arrived(node=A.node, public=A.public, name="ann", address="h:1", length=3))
    assert desk.appended()[0] == Joined(node=A.node, public=A.public, name="ann")
    welcome = desk.sent(A, Welcome)[0]
    assert welcome.length == desk.view.length and welcome.heartbeat_s == 1.0
    assert desk.wanted(SendEntries) == [SendEntries(A.node, 3)]
    kinds = [type(effect) for effect in desk.effects]
    assert kinds.index(Append) < kinds.index(Send), "nothing is said before it is durable"


def test_rounds_wait_for_enough_ready_nodes() -> None:
    desk = Desk(small_recipe(membership=_members(2)))
    desk.join(A)
    assert desk.view.plan is None and "1 more ready node" in desk.machine.waiting_for
    desk.arrive(B)
    assert desk.view.plan is None, "B has not said that it has the state"
    desk.beat(B)
    plan = desk.view.plan
    assert plan is not None and [m.node for m in plan.members] == sorted((A.node, B.node))
    assert plan.deadline_ms == 10_000


def test_a_member_that_comes_back_is_not_entered_twice() -> None:
    desk = _open(A, B)
    length = desk.view.length
    desk.arrive(A)
    assert desk.view.length == length


def test_one_that_left_is_entered_again() -> None:
    desk = _open(A, B)
    desk.say(A, Goodbye(reason="night"))
    assert Left(node=A.node, reason="night") in desk.appended() and not desk.view.members[A.node].present
    desk.arrive(A)
    assert any(isinstance(body, Joined) for body in desk.appended())
    assert desk.view.members[A.node].present


def test_heartbeats_are_answered_with_the_logs_length_and_the_peers() -> None:
    desk = _open(A, B)
    desk.beat(A)
    assert desk.sent(A, Beat) == [Beat(length=desk.view.length)]
    peers = desk.sent(A, Peers)[0]
    assert [peer.node for peer in peers.peers] == [*sorted((A.node, B.node)), COORDINATOR.node]
    desk.say(A, Heartbeat(at=0, length=1, peers=peers.edition, doing=""))
    assert desk.sent(A, Peers) == [], "it has this edition"


def test_peers_that_cannot_be_reached_are_not_named() -> None:
    desk = Desk(small_recipe(membership=_members(2)))
    desk.arrive(A, address="")
    desk.arrive(B)
    assert [peer.node for peer in desk.told(Peers)[-1].peers] == [B.node, COORDINATOR.node]
    desk.step(Lost(B.node))
    assert [peer.node for peer in desk.told(Peers)[-1].peers] == [COORDINATOR.node]


def test_editions_rise_over_restarts() -> None:
    desk = _open(A, B)
    desk.step(Lost(A.node))
    before = desk.told(Peers)[-1].edition
    desk.restart()
    desk.arrive(A)
    assert desk.told(Peers)[-1].edition > before


def test_strangers_are_not_heard() -> None:
    desk = _open(A, B)
    for message in (Heartbeat(at=0, length=1, peers=0, doing=""), NeedEntries(start=0), Goodbye(reason="")):
        assert [e for e in desk.say(C, message) if not isinstance(e, Tell)] == []
    desk.step(Lost(A.node))
    desk.say(A, NeedEntries(start=0))
    assert desk.wanted(SendEntries) == [], "its channel is gone"


@pytest.mark.parametrize("start", [-1, -(2**63), 2**63, 2**64 - 1])
def test_a_page_that_is_not_in_the_log_is_not_asked_of_the_store(start: int) -> None:
    """The store's own integers have limits; a member must not be able to run it against them."""
    desk = _open(A)
    desk.say(A, NeedEntries(start=start))
    assert all(0 <= page.start <= desk.view.length for page in desk.wanted(SendEntries))
    desk.step(Arrived(node=A.node, public=A.public, name="", address="", length=start))
    assert all(0 <= page.start <= desk.view.length for page in desk.wanted(SendEntries))


# --- claims ------------------------------------------------------------------------------------------------


def test_a_claim_is_kept_before_it_is_acknowledged_and_the_last_one_seals() -> None:
    desk = _open(A, B)
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
    desk = _open(A, B)
    ack = desk.offer(A, **DEFECTS[defect])
    assert not ack.kept and ack.reason
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
    desk = _open(A, B)
    claim = make_claim(desk.view, A)
    ack = desk.offer(A, Offer(claim=sign(A, claim), receipts=RECEIPTS[case](claim.blob)))
    assert not ack.kept and ack.reason and ack.sequence == claim.sequence
    assert desk.kept == {}


def test_a_claim_that_another_signed_is_refused() -> None:
    desk = _open(A, B)
    claim = make_claim(desk.view, A)
    forged = Offer(claim=sign(B, claim), receipts=(make_receipt(COORDINATOR, claim.blob),))
    assert not desk.offer(A, forged).kept
    honest = make_offer(desk.view, A)
    assert not desk.offer(B, honest).kept, "somebody else brings it"
    assert not desk.offer(A, Offer(claim=Signed(b"", b""), receipts=())).kept
    assert desk.kept == {}


def test_two_receipts_are_wanted_where_two_can_be_had() -> None:
    recipe = small_recipe(membership=_members(3), storage={"receipts": 2})
    desk = _open(A, B, C, recipe=recipe)
    claim = make_claim(desk.view, A)
    one, two = make_receipt(B, claim.blob), make_receipt(C, claim.blob)
    refused = desk.offer(A, Offer(claim=sign(A, claim), receipts=(one,)))
    assert not refused.kept and "1 of 2 storage receipts" in refused.reason
    assert desk.offer(A, Offer(claim=sign(A, claim), receipts=(one, two))).kept


def test_alone_one_receipt_is_all_that_can_be_had() -> None:
    desk = _open(A, recipe=small_recipe(storage={"receipts": 2}))
    assert desk.offer(A).kept


def test_a_duplicate_is_acknowledged_again_and_another_claim_refused() -> None:
    desk = _open(A, B)
    offer = make_offer(desk.view, A)
    assert desk.offer(A, offer).kept
    again = desk.offer(A, offer)
    assert again.kept and "already" in again.reason and desk.wanted(Keep) == []
    other = desk.offer(A, sequence=5)
    assert not other.kept and "another claim" in other.reason and len(desk.kept) == 1


def test_a_settled_claim_is_not_taken_again() -> None:
    desk = _open(A, B)
    offer = make_offer(desk.view, A)
    desk.offer(A, offer)
    desk.offer(B)
    late = desk.offer(A, offer)
    assert not late.kept and late.reason
    desk.check()


# --- deadlines ---------------------------------------------------------------------------------------------


def _stay(desk: Desk, seconds: float, *nodes: Any) -> None:
    """Time passes while these nodes show signs of life."""
    for _ in range(int(seconds)):
        desk.now += 1
        desk.beat(*nodes)


def test_the_deadline_seals_what_there_is() -> None:
    desk = _open(A, B)
    assert desk.offer(A).kept
    _stay(desk, 9, A, B)
    assert desk.view.round == 0
    _stay(desk, 1, A, B)
    assert desk.view.round == 1 and len(desk.view.path[0].updates) == 1
    desk.check()


def test_a_deadline_without_claims_plans_again() -> None:
    desk = _open(A, B)
    first = desk.view.plan_position
    _stay(desk, 10, A, B)
    assert desk.view.round == 0 and desk.view.plan_position > first
    assert desk.view.plan is not None and "no update within 10 s" in desk.view.plan.reason
    assert desk.offer(A).kept and desk.offer(B).kept
    desk.check()


def test_a_claim_for_the_first_plan_still_counts_after_planning_again() -> None:
    desk = _open(A, B)
    late = make_offer(desk.view, A)
    _stay(desk, 10, A, B)
    assert desk.offer(A, late).kept and desk.offer(B).kept
    assert desk.view.round == 1
    desk.check()


def test_one_that_is_silent_for_a_lease_is_not_waited_for() -> None:
    desk = _open(A, B)
    assert desk.offer(A).kept
    _stay(desk, 6, A)
    assert desk.view.round == 1 and [u.claim.node for u in desk.view.path[0].updates] == [A.node]
    assert desk.view.plan is not None and [m.node for m in desk.view.plan.members] == [A.node]


def test_a_broken_connection_is_waited_for_only_a_moment() -> None:
    desk = _open(A, B)
    assert desk.offer(A).kept
    desk.step(Lost(B.node))
    _stay(desk, 1, A)
    assert desk.view.round == 0
    _stay(desk, 1, A)
    assert desk.view.round == 1


def test_all_gone_and_back() -> None:
    desk = _open(A, B)
    desk.tick(7)
    assert desk.view.plan is not None and "ready node" in desk.machine.waiting_for
    length = desk.view.length
    desk.tick(100)
    assert desk.view.length == length, "waiting writes nothing"
    desk.join(C)
    assert desk.view.length == length + 1, "the first round still needs two"
    desk.join(D)
    plan = desk.view.plan
    assert plan is not None and [m.node for m in plan.members] == sorted((C.node, D.node))
    assert plan.round == 0 and "every member of the plan is gone" in plan.reason
    desk.seal_round(C, D)
    desk.check()


def test_one_of_those_that_were_gone_comes_back_to_its_old_plan() -> None:
    desk = _open(A, B)
    desk.tick(7)
    desk.join(A)
    assert desk.view.round == 0 and desk.machine.waiting_for == "0 of 2 updates"
    assert desk.offer(A).kept and desk.view.round == 1
    desk.check()


def test_one_that_leaves_is_not_waited_for() -> None:
    desk = _open(A, B)
    assert desk.offer(A).kept
    desk.say(B, Goodbye(reason="night"))
    assert desk.view.round == 1
    desk.check()


def test_a_late_joiner_is_in_the_next_plan() -> None:
    desk = _open(A, B)
    desk.arrive(C)
    desk.beat(C)
    assert C.node not in desk.view.planned
    desk.seal_round(A, B)
    assert C.node in desk.view.planned
    desk.check()


# --- restarts ----------------------------------------------------------------------------------------------


def test_a_kept_claim_survives_a_restart() -> None:
    desk = _open(A, B)
    offer = make_offer(desk.view, A)
    assert desk.offer(A, offer).kept
    desk.restart()
    assert desk.view.plan is not None
    term = desk.view.term
    desk.tick()
    assert desk.view.round == 0, "the planned members get a lease to come back"
    desk.arrive(A, B)
    assert desk.offer(A, offer).kept and desk.wanted(Keep) == []
    assert desk.offer(B).kept
    assert len(desk.view.path[0].updates) == 2 and desk.view.term == term + 1
    desk.check()


def test_after_a_restart_nobody_is_waited_for_longer_than_a_lease() -> None:
    desk = _open(A, B)
    assert desk.offer(A).kept
    desk.restart()
    desk.arrive(A)
    _stay(desk, 6, A)
    assert desk.view.round == 1 and desk.view.path[0].updates[0].claim.node == A.node


def test_a_claim_that_was_sealed_before_the_crash_is_dropped_and_not_counted_again() -> None:
    desk = _open(A, B)
    desk.seal_round(A, B)
    desk.restart()
    desk.join(A, B)
    desk.seal_round(A, B)
    dropped = {drop.key for drop in desk.wanted(Drop)}
    assert dropped == set(desk.kept), "the old round's keys and the new one's"
    desk.check()


def test_a_kept_claim_that_a_rewind_made_void_is_rejected_in_the_next_seal() -> None:
    desk = _open(A, B)
    first = desk.seal_round(A, B)
    desk.attest(A, "s1")
    desk.beat(A, B)
    desk.seal_round(A, B)
    assert desk.offer(A).kept
    sequence = make_claim(desk.view, A).sequence
    desk.step(RewindAsked(first, "asked"))
    desk.restart()
    desk.join(A, B)
    desk.tick()
    desk.offer(A, sequence=sequence + 1)
    desk.offer(B)
    seal = next(body for body in desk.appended() if isinstance(body, Seal))
    assert [(r.node, r.sequence) for r in seal.rejected] == [(A.node, sequence)]
    desk.check()


# --- attestations ------------------------------------------------------------------------------------------


def _attested(*nodes: Any) -> Desk:
    desk = _open(*nodes)
    desk.seal_round(*nodes)
    return desk


def test_a_majority_of_the_live_is_entered() -> None:
    desk = _attested(A, B, C)
    desk.attest(A, "s")
    assert desk.wanted(Append) == [], "one of three"
    desk.attest(B, "s")
    body = desk.appended()[0]
    assert isinstance(body, Attestations) and len(body.items) == 2
    desk.attest(C, "s")
    body = desk.appended()[0]
    assert isinstance(body, Attestations) and len(body.items) == 1, "only what is new"
    assert set(desk.view.attested[desk.view.at]) == {A.node, B.node, C.node}
    desk.attest(C, "s")
    assert desk.appended() == []
    desk.check()


def test_a_dissenter_is_told_to_rebuild() -> None:
    desk = _attested(A, B, C)
    desk.attest(C, "other")
    desk.attest(A, "s")
    desk.attest(B, "s")
    assert desk.sent(C, Rebuild) == [Rebuild(at=desk.view.at)]
    assert desk.sent(A, Rebuild) == []
    desk.attest(C, "s")
    assert desk.sent(C, Rebuild) == [], "it has rebuilt its state and says so"


def test_without_a_possible_majority_the_run_is_rewound() -> None:
    desk = _open(A, B)
    first = desk.seal_round(A, B)
    desk.attest(A, "s1")
    desk.attest(B, "s1")
    desk.beat(A, B)
    desk.seal_round(A, B)
    desk.attest(A, "s2")
    desk.attest(B, "other")
    rewind = next(body for body in desk.appended() if isinstance(body, Rewind))
    assert rewind.to == first and "no majority" in rewind.reason and desk.view.at == first
    desk.check()


@pytest.mark.parametrize(
    "changes",
    [{"run": OTHER_RUN}, {"at": Head(1, "0")}, {"node": B.node}, {"how": "adopted"}],
    ids=["another run", "another log", "another's name", "adopted"],
)
def test_words_that_do_not_count(changes: dict[str, Any]) -> None:
    desk = _attested(A)
    desk.attest(A, "s", **changes)
    assert desk.appended() == [] and desk.view.attested == {}


def test_snapshots_are_fetched_once_and_entered() -> None:
    desk = _attested(A, B)
    at, blob = desk.view.at, snapshot_of("s")
    desk.attest(A, "s", snapshot=blob)
    desk.attest(B, "s", snapshot=blob)
    holders = tuple(sorted((A.node, B.node)))
    assert desk.wanted(FetchBlob) == [FetchBlob(at, blob, None, holders)]
    desk.attest(B, "s", snapshot=blob)
    assert desk.wanted(FetchBlob) == []
    desk.step(BlobFetched(at=at, blob=blob, size_bytes=77))
    assert desk.appended()[0] == Snapshot(at=at, state="s", blob=blob, size_bytes=77, holders=holders)
    assert desk.wanted(Prune) and desk.view.best_start().at == at
    desk.step(BlobFetched(at=at, blob=blob, size_bytes=77))
    assert desk.appended() == []
    desk.check()


def test_a_snapshot_that_could_not_be_fetched_is_asked_for_again() -> None:
    desk = _attested(A, B)
    at, blob = desk.view.at, snapshot_of("s")
    desk.attest(A, "s", snapshot=blob)
    desk.attest(B, "s", snapshot=blob)
    desk.step(BlobFetched(at=at, blob=blob, size_bytes=None))
    assert desk.appended() == [] and desk.view.at == at
    desk.attest(B, "s", snapshot=blob)
    assert len(desk.wanted(FetchBlob)) == 1


def test_one_liar_cannot_put_its_blob_in_place_of_the_snapshot() -> None:
    """The state's hash is right, the blob is not: three know better than one."""
    desk = _attested(A, B, C)
    at, good = desk.view.at, snapshot_of("s")
    desk.attest(A, "s", snapshot=blob_id("rubbish"))
    desk.attest(B, "s", snapshot=good)
    fetched = desk.wanted(FetchBlob)
    desk.attest(C, "s", snapshot=good)
    fetched += desk.wanted(FetchBlob)
    for fetch in fetched:
        desk.step(BlobFetched(at=at, blob=fetch.blob, size_bytes=64))
    assert [saved.blob for saved in desk.view.snapshots[1:]] == [good]


def test_a_snapshot_nobody_has_does_not_undo_the_round() -> None:
    """A node names a snapshot that it does not have, then another: the first fetch fails, and that is all."""
    desk = _attested(A)
    at = desk.view.at
    desk.attest(A, "s", snapshot=blob_id("never made"))
    desk.attest(A, "s", snapshot=snapshot_of("s"))
    desk.step(BlobFetched(at=at, blob=blob_id("never made"), size_bytes=None))
    assert desk.view.at == at and not any(isinstance(body, Rewind) for body in desk.appended())


# --- trouble -----------------------------------------------------------------------------------------------


def test_stuck_nodes_make_the_coordinator_fetch_and_then_rewind() -> None:
    desk = _attested(A, B)
    at = desk.view.at
    update = desk.view.path[0].updates[0].claim
    patience_s = PATIENCE_LEASES * desk.recipe.membership.lease_s
    desk.say(B, Stuck(at=at, blob=update.blob, seconds=patience_s - 1))
    assert desk.wanted(FetchBlob) == []
    desk.say(B, Stuck(at=at, blob=blob_id("not of this seal"), seconds=patience_s))
    assert desk.wanted(FetchBlob) == []
    desk.say(B, Stuck(at=at + 1, blob=update.blob, seconds=patience_s))
    assert desk.wanted(FetchBlob) == []
    desk.say(B, Stuck(at=at, blob=update.blob, seconds=patience_s))
    fetch = desk.wanted(FetchBlob)[0]
    assert (fetch.at, fetch.blob, fetch.size_bytes) == (at, update.blob, update.size_bytes)
    assert fetch.holders == (COORDINATOR.node, update.node)
    desk.step(BlobFetched(at=at, blob=update.blob, size_bytes=100))
    assert desk.view.at == at, "here it is: nodes can fetch it from here"
    desk.step(BlobFetched(at=at, blob=update.blob, size_bytes=None))
    rewind = next(body for body in desk.appended() if isinstance(body, Rewind))
    assert rewind.to == 0 and "nobody has update" in rewind.reason
    desk.step(BlobFetched(at=at, blob=update.blob, size_bytes=None))
    assert not any(isinstance(body, Rewind) for body in desk.appended()), "once is enough"
    desk.check()


def test_a_lost_update_in_the_middle_rewinds_to_just_before_it() -> None:
    desk = _open(A, B)
    first = desk.seal_round(A, B)
    desk.beat(A, B)
    second = desk.seal_round(A, B)
    update = desk.view.path[1].updates[0].claim
    desk.step(BlobFetched(at=second, blob=update.blob, size_bytes=None))
    assert desk.view.at == first


def test_a_rewind_that_was_asked_for() -> None:
    desk = _open(A, B)
    first = desk.seal_round(A, B)
    desk.beat(A, B)
    desk.seal_round(A, B)
    assert desk.offer(A).kept
    desk.step(RewindAsked(first, "diverged"))
    assert Rewind(to=first, reason="diverged") in desk.appended() and desk.view.at == first
    length = desk.view.length
    for to in (first, 99, -1, 1):
        desk.step(RewindAsked(to, "nonsense"))
        assert not any(isinstance(body, Rewind) for body in desk.appended())
    assert desk.view.length >= length
    desk.check()


# --- the end -----------------------------------------------------------------------------------------------


def test_stop() -> None:
    desk = _open(A, B)
    desk.step(StopAsked("enough"))
    assert desk.appended() == [Stopped(reason="enough")] and desk.told(Entries)
    desk.step(StopAsked("again"))
    assert desk.appended() == []
    desk.tick(1000)
    assert desk.appended() == [] and desk.view.plan is None
    desk.check()


def test_after_the_stop_members_may_return_and_strangers_may_not() -> None:
    desk = _open(A, B)
    desk.step(StopAsked("enough"))
    desk.arrive(C)
    assert [d.refuse.code for d in desk.wanted(Dismiss)] == ["SH-JOIN-08"]
    assert desk.sent(C, Welcome) == []
    desk.arrive(A)
    assert desk.sent(A, Welcome) and desk.appended() == []
    assert not desk.offer(A).kept
    desk.step(RewindAsked(0, "late"))
    assert desk.appended() == []


def test_the_final_state_is_saved_after_the_stop() -> None:
    desk = _open(A, B, recipe=small_recipe(membership=_members(2), budget={"rounds": 1}))
    at = desk.seal_round(A, B)
    assert desk.view.stopped == "1 rounds done" and not desk.machine.finished
    desk.tick()
    assert "final state" in desk.machine.waiting_for
    blob = snapshot_of("s")
    desk.attest(A, "s", snapshot=blob)
    desk.attest(B, "s", snapshot=blob)
    desk.step(BlobFetched(at=at, blob=blob, size_bytes=9))
    assert desk.machine.finished and "over" in desk.machine.waiting_for
    desk.check()


@pytest.mark.parametrize(
    ("budget", "rounds", "why"),
    [
        ({"rounds": 2}, 2, "2 rounds done"),
        ({"tokens": 4 * STEPS * BATCH}, 2, f"{4 * STEPS * BATCH} tokens done"),
        ({"seconds": 30}, 3, "33 seconds done"),
    ],
)
def test_budgets(budget: dict[str, Any], rounds: int, why: str) -> None:
    desk = _open(A, B, recipe=small_recipe(membership=_members(2), budget=budget))
    for number in range(rounds):
        assert desk.view.stopped is None, number
        _stay(desk, 5, A, B)
        assert desk.offer(A).kept
        _stay(desk, 4, A, B)
        desk.now += 2
        assert desk.offer(B).kept
        desk.beat(A, B)
    assert desk.view.stopped == why
    desk.check()


def test_a_restart_after_the_end_stays_at_the_end() -> None:
    desk = _open(A, B)
    desk.step(StopAsked("enough"))
    desk.restart()
    desk.tick(50)
    assert desk.appended() == [] and desk.view.stopped == "enough"


def test_an_acknowledged_claim_is_accounted_for_at_the_stop() -> None:
    """`kept` promised that the claim would be accepted or rejected in a seal."""
    desk = _open(A, B)
    assert desk.offer(A).kept
    key = next(iter(desk.kept))
    desk.step(StopAsked("enough"))
    bodies = desk.appended()
    settled = any(isinstance(body, Seal) for body in bodies)
    assert settled or Drop(key) in desk.effects, "neither sealed nor dropped: it is kept for ever"


def test_needed_blobs_hold_the_kept_claims() -> None:
    desk = _open(A, B)
    assert desk.offer(A).kept
    claim = make_claim(desk.view, A)
    assert claim.blob in desk.machine.needed_blobs()


def test_entries_are_signed_with_a_higher_term_after_every_start() -> None:
    desk = _open(A, B)
    terms = [desk.view.term]
    for _ in range(3):
        desk.restart()
        desk.join(A, B)
        desk.seal_round(A, B)
        terms.append(desk.view.term)
    assert terms == sorted(set(terms)) and len(terms) == 4
    desk.check()


def test_a_claims_weight_is_its_samples() -> None:
    desk = _open(A, B)
    half = STEPS * BATCH // 2
    offer = make_offer(
        desk.view,
        A,
        samples=half,
        data=(DataRange(desk.view.planned[A.node][desk.view.plan_position].data.start, half),),
    )
    assert desk.offer(A, offer).kept
    desk.offer(B)
    seal = next(body for body in desk.appended() if isinstance(body, Seal))
    weights = {u.claim.node: u.weight for u in desk.view.path[0].updates}
    assert weights == {A.node: half, B.node: STEPS * BATCH}
    assert msgspec.msgpack.encode(seal)
    desk.check()
