"""Rounds that do not wait for everybody: a quorum, every arrival, and work that is out over several rounds."""

from typing import Any

from runlog.small_log import (
    BATCH,
    COORDINATOR,
    NODES,
    STEPS,
    make_claim,
    make_offer,
    make_receipt,
    small_recipe,
)

from shoal.coordinator.events import BlobFetched, RewindAsked, StopAsked
from shoal.runlog.entries import Plan, Seal
from shoal.wire.messages import Goodbye, Heartbeat, Offer
from shoal.wire.signed import sign

from .desk import Desk, members, stay

A, B, C, D = NODES[:4]
FULL = STEPS * BATCH


def _desk(*nodes: Any, **seal: Any) -> Desk:
    strategy = {
        "preset": "local-sgd",
        "schedule": {"steps": STEPS},
        "codec": {"kind": "none"},
        "seal": seal,
        "weights": {"kind": "samples", "discount": 1.0},
    }
    desk = Desk(small_recipe(strategy=strategy, membership=members(len(nodes))))
    desk.join(*nodes)
    assert set(desk.view.planned) == {node.node for node in nodes}
    return desk


def _quorum(*nodes: Any, staleness: int = 1, **seal: Any) -> Desk:
    values = {"quorum": 2, "grace_s": 2.0, "deadline_s": 10.0, **seal}
    return _desk(*nodes, kind="quorum", staleness=staleness, **values)


def _arrivals(*nodes: Any, **seal: Any) -> Desk:
    return _desk(
        *nodes, kind="arrivals", **{"min_interval_s": 2.0, "adaptive": False, "staleness": 3, **seal}
    )


def _seals(desk: Desk) -> list[Seal]:
    return [body for body in desk.appended() if isinstance(body, Seal)]


def _plans(desk: Desk) -> list[Plan]:
    return [body for body in desk.appended() if isinstance(body, Plan)]


# --- quorum ------------------------------------------------------------------------------------------------


def test_a_quorum_waits_for_grace_and_no_longer() -> None:
    desk = _quorum(A, B, C)
    desk.offer(A)
    stay(desk, 3, A, B, C)
    assert desk.view.round == 0
    desk.offer(B)
    stay(desk, 1, A, B, C)
    assert desk.view.round == 0, "in the time of grace"
    stay(desk, 1, A, B, C)
    assert desk.view.round == 1 and len(desk.view.path[0].updates) == 2
    assert C.node in desk.view.planned and desk.view.planned[C.node].keys() < {desk.view.plan_position, 4, 5}
    desk.check()


def test_one_that_missed_the_seal_counts_in_the_next_with_its_age_and_less_weight() -> None:
    desk = _quorum(A, B, C)
    late = make_offer(desk.view, C)
    desk.offer(A)
    desk.offer(B)
    stay(desk, 2, A, B, C)
    assert desk.view.round == 1
    assert [member.node for member in desk.view.plan.members] == [A.node, B.node], "C still has work"  # type: ignore[union-attr]
    assert desk.offer(C, late).kept
    desk.offer(A)
    desk.offer(B)
    assert desk.view.round == 2, "all three are here"
    by_node = {update.claim.node: update for update in desk.view.path[-1].updates}
    assert by_node[C.node].ages == (1, 1) and by_node[C.node].weight == FULL // 2
    assert by_node[A.node].ages == () and by_node[A.node].weight == FULL
    assert C.node in {member.node for member in desk.view.plan.members}  # type: ignore[union-attr]
    desk.check()


def test_one_that_is_later_still_is_told_so_and_gets_new_work() -> None:
    desk = _quorum(A, B, C)
    late = make_offer(desk.view, C)
    for _ in range(2):
        desk.offer(A)
        desk.offer(B)
        stay(desk, 2, A, B, C)
    assert desk.view.round == 2 and C.node in {member.node for member in desk.view.plan.members}  # type: ignore[union-attr]
    ack = desk.offer(C, late)
    assert not ack.kept and not ack.retry and "not in an open plan" in ack.reason
    assert desk.offer(C).kept
    desk.check()


def test_without_staleness_a_quorum_is_a_quorum() -> None:
    desk = _quorum(A, B, C, staleness=0)
    desk.offer(A)
    desk.offer(B)
    stay(desk, 2, A, B, C)
    assert set(desk.view.planned) == {A.node, B.node, C.node}, "everybody begins again"
    assert all(list(plans) == [desk.view.plan_position] for plans in desk.view.planned.values())


def test_a_kept_late_claim_survives_a_restart() -> None:
    desk = _quorum(A, B, C)
    late = make_offer(desk.view, C)
    desk.offer(A)
    desk.offer(B)
    stay(desk, 2, A, B, C)
    assert desk.offer(C, late).kept
    desk.restart()
    desk.join(A, B, C)
    desk.offer(A)
    desk.offer(B)
    assert {update.claim.node for update in desk.view.path[-1].updates} == {A.node, B.node, C.node}
    desk.check()


def test_a_newcomer_gets_work_while_a_round_is_open() -> None:
    desk = _quorum(A, B)
    desk.arrive(D)
    desk.now += 1
    desk.beat(D)
    assert D.node in desk.view.planned and desk.view.round == 0
    assert _plans(desk)[0].reason == "1 ready node, equal work; at once"
    desk.check()


def test_a_rewind_voids_late_claims_and_closes_their_work() -> None:
    desk = _quorum(A, B, C)
    late = make_offer(desk.view, C)
    desk.offer(A)
    desk.offer(B)
    stay(desk, 2, A, B, C)
    assert desk.offer(C, late).kept
    desk.step(RewindAsked(0, "asked"))
    stay(desk, 2, A, B, C)
    for node in (A, B, C):
        desk.offer(node, sequence=5)
    (seal,) = _seals(desk)
    assert [(r.node, r.sequence) for r in seal.rejected] == [(C.node, 0)]
    desk.check()


def test_a_stop_seals_what_is_kept_though_no_round_is_open() -> None:
    """The coordinator dies between keeping a late claim and opening a round for it, and is then told to stop."""
    desk = _quorum(A, B, C)
    late = make_offer(desk.view, C)
    desk.offer(A)
    desk.offer(B)
    for node in (A, B):
        desk.say(node, Goodbye(reason="night"))
    desk.say(C, Heartbeat(at=0, length=1, peers=0, doing="", paused=True))
    assert desk.view.round == 1 and desk.view.plan is None and C.node in desk.view.planned
    before = len(desk.entries)
    desk.offer(C, late)
    del desk.entries[before:]
    desk.restart()
    desk.step(StopAsked("enough"))
    settled = {update.claim.node for step in desk.view.path for update in step.updates}
    assert settled == {A.node, B.node, C.node} and desk.view.stopped == "enough"
    desk.check()


# --- arrivals ----------------------------------------------------------------------------------------------


def test_every_arrival_is_sealed_at_the_minimum_interval() -> None:
    desk = _arrivals(A, B, C)
    desk.tick(2)
    desk.offer(A)
    assert desk.view.round == 1, "at once, since the last seal was long ago"
    desk.offer(B)
    assert desk.view.round == 1 and "after the last" in desk.machine.waiting_for
    desk.beat(A)
    assert desk.offer(A).kept
    stay(desk, 2, A, B, C)
    assert desk.view.round == 2 and len(desk.view.path[-1].updates) == 2
    desk.check()


def test_an_arrival_counts_for_its_share_of_the_live_fleet() -> None:
    desk = _arrivals(A, B, C)
    stay(desk, 2, A, B, C)
    desk.offer(A)
    assert desk.view.path[0].whole == 3 * FULL and desk.view.totals.rounds == 1 / 3
    desk.say(C, Heartbeat(at=desk.view.at, length=1, peers=0, doing="", paused=True))
    stay(desk, 2, A, B)
    desk.offer(B)
    assert desk.view.path[1].whole == 2 * FULL, "one that pauses is not counted"
    desk.check()


def test_whoever_is_free_gets_work_at_once_and_nobody_gets_it_twice() -> None:
    desk = _arrivals(A, B, C)
    stay(desk, 2, A, B, C)
    desk.offer(A)
    (plan,) = _plans(desk)
    assert [member.node for member in plan.members] == [A.node] and plan.round == 1
    assert len(desk.view.planned[B.node]) == len(desk.view.planned[C.node]) == 1
    stay(desk, 5, A, B, C)
    assert not _plans(desk), "everyone has work"
    desk.check()


def test_an_empty_plan_opens_a_round_for_work_that_is_out() -> None:
    desk = _arrivals(A, B)
    stay(desk, 2, A, B)
    offer = make_offer(desk.view, A)
    desk.say(A, Heartbeat(at=0, length=1, peers=0, doing="", paused=True))
    desk.offer(A, offer)
    assert desk.view.round == 1 and desk.view.plan is not None and desk.view.plan.members == ()
    assert "earlier rounds" in desk.view.plan.reason
    length = desk.view.length
    stay(desk, 5, B)
    assert desk.view.length == length, "waiting writes nothing"
    desk.offer(B)
    assert desk.view.path[-1].updates[0].ages == (1, 1)
    desk.check()


def test_when_everyone_with_work_is_gone_newcomers_take_over() -> None:
    desk = _arrivals(A, B)
    desk.tick(10)
    length = desk.view.length
    desk.tick(10)
    assert desk.view.length == length and "ready node" in desk.machine.waiting_for
    desk.arrive(C, D)
    stay(desk, 3, C, D)
    assert {C.node, D.node} <= set(desk.view.planned)
    desk.check()


def test_a_node_that_is_far_behind_is_given_work_all_the_same() -> None:
    desk = _arrivals(A, B)
    stay(desk, 2, A, B)
    for _ in range(12):
        desk.offer(A)
        stay(desk, 2, A)
        desk.beat(B, at=0)
    assert len(desk.view.path) == 12 and B.node in desk.view.planned
    desk.check()


# --- holders that do not give ------------------------------------------------------------------------------


def test_who_vouched_for_what_its_author_had_to_bring_is_not_believed_again() -> None:
    desk = _quorum(A, B, C, staleness=0)
    claim = make_claim(desk.view, A)
    kept = desk.offer(A, Offer(claim=sign(A, claim), receipts=(make_receipt(B, claim.blob),)))
    assert kept.kept
    desk.offer(C)
    stay(desk, 2, A, B, C)
    desk.step(BlobFetched(at=desk.view.at, blob=claim.blob, size_bytes=100, pushed=True))
    claim = make_claim(desk.view, A)
    ack = desk.offer(A, Offer(claim=sign(A, claim), receipts=(make_receipt(B, claim.blob),)))
    assert not ack.kept and ack.retry, "B's word does not count"
    assert desk.offer(A, Offer(claim=sign(A, claim), receipts=(make_receipt(COORDINATOR, claim.blob),))).kept
    assert desk.offer(B).kept, "and B may go on with its own work"
