"""When a round is sealed or planned again, and who is waited for."""

from typing import Any

from runlog.small_log import (
    NODES,
    make_offer,
)

from shoal.coordinator.events import (
    Lost,
)
from shoal.wire.messages import (
    Goodbye,
    Heartbeat,
)

from .desk import Desk, open_round, stay

A, B, C, D = NODES[:4]


def test_the_deadline_seals_what_there_is() -> None:
    desk = open_round(A, B)
    assert desk.offer(A).kept
    stay(desk, 9, A, B)
    assert desk.view.round == 0
    stay(desk, 1, A, B)
    assert desk.view.round == 1 and len(desk.view.path[0].updates) == 1
    desk.check()


def test_a_deadline_without_claims_plans_again() -> None:
    desk = open_round(A, B)
    first = desk.view.plan_position
    stay(desk, 10, A, B)
    assert desk.view.round == 0 and desk.view.plan_position > first
    assert desk.view.plan is not None and "no update within 10 s" in desk.view.plan.reason
    assert desk.offer(A).kept and desk.offer(B).kept
    desk.check()


def test_a_claim_for_the_first_plan_still_counts_after_planning_again() -> None:
    desk = open_round(A, B)
    late = make_offer(desk.view, A)
    stay(desk, 10, A, B)
    assert desk.offer(A, late).kept and desk.offer(B).kept
    assert desk.view.round == 1
    desk.check()


def test_one_that_is_silent_for_a_lease_is_not_waited_for() -> None:
    desk = open_round(A, B)
    assert desk.offer(A).kept
    stay(desk, 6, A)
    assert desk.view.round == 1 and [u.claim.node for u in desk.view.path[0].updates] == [A.node]
    assert desk.view.plan is not None and [m.node for m in desk.view.plan.members] == [A.node]


def test_a_broken_connection_is_waited_for_only_a_moment() -> None:
    desk = open_round(A, B)
    assert desk.offer(A).kept
    desk.step(Lost(B.node))
    stay(desk, 1, A)
    assert desk.view.round == 0
    stay(desk, 1, A)
    assert desk.view.round == 1


def test_all_gone_and_back() -> None:
    desk = open_round(A, B)
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
    desk = open_round(A, B)
    desk.tick(7)
    desk.join(A)
    assert desk.view.round == 0 and desk.machine.waiting_for == "0 of 2 updates"
    assert desk.offer(A).kept and desk.view.round == 1
    desk.check()


def test_one_that_leaves_is_not_waited_for() -> None:
    desk = open_round(A, B)
    assert desk.offer(A).kept
    desk.say(B, Goodbye(reason="night"))
    assert desk.view.round == 1
    desk.check()


def _pause(desk: Desk, node: Any, *, paused: bool = True) -> None:
    desk.say(node, Heartbeat(at=desk.view.at, length=1, peers=0, doing="", paused=paused))


def test_one_that_pauses_is_not_waited_for() -> None:
    desk = open_round(A, B)
    assert desk.offer(A).kept
    _pause(desk, B)
    assert desk.view.round == 1, "sealed at once, without it"
    assert desk.view.plan is not None and [m.node for m in desk.view.plan.members] == [A.node]
    _pause(desk, B, paused=False)
    assert desk.view.round == 1 and B.node not in desk.view.planned
    desk.seal_round(A)
    assert set(desk.view.planned) == {A.node, B.node}, "and it is back at work in the next round"
    desk.check()


def test_when_everyone_pauses_the_run_waits_and_writes_nothing() -> None:
    desk = open_round(A, B)
    _pause(desk, A)
    _pause(desk, B)
    length = desk.view.length
    for _ in range(30):
        desk.now += 1
        _pause(desk, A)
        _pause(desk, B)
    assert desk.view.length == length and "ready node" in desk.machine.waiting_for
    _pause(desk, A, paused=False)
    assert desk.offer(A).kept and desk.view.round == 1
    desk.check()


def test_one_that_pauses_may_still_deliver() -> None:
    desk = open_round(A, B)
    _pause(desk, B)
    assert desk.offer(B).kept and desk.view.round == 0
    assert desk.offer(A).kept and len(desk.view.path[0].updates) == 2


def test_a_late_joiner_is_in_the_next_plan() -> None:
    desk = open_round(A, B)
    desk.arrive(C)
    desk.beat(C)
    assert C.node not in desk.view.planned
    desk.seal_round(A, B)
    assert C.node in desk.view.planned
    desk.check()
