"""Price and budget between a run and its nodes, without threads, clocks or sockets."""

from __future__ import annotations

from typing import Any

from runlog.small_log import NODES, small_recipe

from shoal.coordinator.events import Arrived, EnterCredit, FundAsked, SendReceipt, StopAsked
from shoal.runlog.entries import Funded, Plan, Seal
from shoal.strategy.recipe import Recipe, recipe_from
from shoal.wire.identity import Identity
from shoal.wire.messages import Beat, Heartbeat

from .desk import Desk, members

A, B, C = NODES[:3]
PRICE = 100
PLAIN = {"price_micro": PRICE, "hubs_percent": 0, "auditors_percent": 0}


def recipe(nodes: int = 2, **credit: Any) -> Recipe:
    values = small_recipe(membership=members(nodes)).model_dump(mode="json")
    return recipe_from({**values, "credit": {**PLAIN, **credit}})


def arrive(desk: Desk, node: Identity, least: int) -> None:
    desk.step(
        Arrived(node=node.node, public=node.public, name="n", address="h:1", length=0, min_price_micro=least)
    )


def note_to(desk: Desk, node: Identity) -> str:
    desk.say(node, Heartbeat(at=desk.view.at, length=desk.view.length, peers=0, doing=""))
    return desk.sent(node, Beat)[-1].note


def cost_of(desk: Desk) -> int:
    """What one update of the open plan may cost."""
    assert desk.view.plan is not None
    return desk.view.plan.members[0].data.count * PRICE


def one_update() -> int:
    desk = Desk(recipe())
    desk.join(A, B)
    return cost_of(desk)


def planned(desk: Desk) -> set[str]:
    return set(desk.view.planned)


def test_only_those_for_whom_the_price_is_enough_are_planned_and_the_others_are_told() -> None:
    desk = Desk(recipe())
    for node, least in ((A, PRICE), (B, 0), (C, PRICE + 1)):
        arrive(desk, node, least)
    desk.beat(C, A, B)
    assert planned(desk) == {A.node, B.node}
    assert desk.view.plan is not None and "1 node not planned, asking for more" in desk.view.plan.reason
    assert "asks for 0.000101 credits" in note_to(desk, C)
    assert note_to(desk, A) == ""
    desk.check()


def test_a_run_that_nobody_works_for_says_so() -> None:
    desk = Desk(recipe(nodes=1))
    arrive(desk, A, 10**6)
    desk.beat(A)
    assert desk.view.plan is None
    assert "1 node not planned, asking for more than 0.000100 credits a sample" in desk.machine.waiting_for
    arrive(desk, A, 0)  # the volunteer comes again, for less
    desk.beat(A)
    assert planned(desk) == {A.node}


def test_a_spent_budget_pauses_the_run_until_it_is_raised() -> None:
    cost = one_update()
    desk = Desk(recipe(budget_micro=2 * cost))
    desk.join(A, B)
    assert planned(desk) == {A.node, B.node}
    desk.seal_round(A, B)
    while planned(desk):  # what the first round did not use may be enough for another
        desk.seal_round(*(node for node in (A, B) if node.node in planned(desk)))
        desk.beat(A, B)
    assert desk.machine.crediting.owed_micro <= 2 * cost
    assert "the next update may cost" in desk.machine.out_of_budget
    assert desk.machine.waiting_for.startswith("more budget: the budget of")
    assert note_to(desk, A).startswith("paused: the budget of")
    assert desk.view.stopped is None
    desk.step(FundAsked(cost, "more"))
    assert [type(body) for body in desk.appended()] == [Funded, Plan]
    assert len(planned(desk)) == 1 and desk.machine.out_of_budget == ""
    assert desk.view.plan is not None and "the budget pays 1 of 2" in desk.view.plan.reason
    desk.check()


def test_a_paused_run_is_still_paused_after_a_restart_and_can_be_stopped() -> None:
    cost = one_update()
    desk = Desk(recipe(budget_micro=cost - 1))
    desk.join(A, B)
    assert not planned(desk) and desk.machine.out_of_budget
    desk.restart()
    desk.join(A, B)
    assert not planned(desk) and desk.machine.out_of_budget
    desk.step(StopAsked("enough"))
    assert desk.view.stopped == "enough" and desk.machine.out_of_budget == ""


def test_work_that_is_out_is_paid_for_before_anything_new() -> None:
    cost = one_update()
    desk = Desk(recipe(nodes=1, budget_micro=2 * cost - 1))
    desk.join(A, B)
    assert len(planned(desk)) == 1  # the second could not be paid in full
    (worker,) = (node for node in (A, B) if node.node in planned(desk))
    desk.seal_round(worker)
    earned = desk.machine.crediting.spent_micro
    assert 0 < earned <= cost


def test_who_asks_for_least_goes_first_where_not_everybody_can_be_paid() -> None:
    cost = one_update()
    desk = Desk(recipe(nodes=3, budget_micro=cost))
    for node, least in ((A, PRICE), (B, PRICE), (C, PRICE - 1)):
        arrive(desk, node, least)
    desk.beat(A, B, C)
    assert planned(desk) == {C.node}


def test_whatever_is_earned_is_entered_after_it_is_told_and_a_returning_node_has_its_receipt_again() -> None:
    desk = Desk(recipe())
    desk.join(A, B)
    for node in (A, B):
        desk.offer(node)
    kinds = [type(effect).__name__ for effect in desk.effects]
    seal = next(body for body in desk.appended() if isinstance(body, Seal))
    assert len(seal.accepted) == 2
    (entered,) = desk.wanted(EnterCredit)
    assert kinds.index("Append") < kinds.index("Tell") < kinds.index("EnterCredit")
    assert {line.node for line in entered.lines} == {A.node, B.node}
    desk.arrive(A)
    assert desk.wanted(SendReceipt) == [SendReceipt(A.node)]
