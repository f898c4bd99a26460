"""Whom a budget can pay: by hand, with work that is out."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.credit.spec import CreditSpec
from shoal.runlog.entries import Assignment, DataRange, Plan
from shoal.runlog.work import OpenWork, Standing, give_work
from shoal.strategy.hiring import Purse, hire

ANN, BOB = NodeId("ann"), NodeId("bob")
COST = 8 * 100


def plan(*nodes: NodeId, steps: int = 2) -> Plan:
    members = tuple(
        Assignment(node=node, data=DataRange(place * 100, 4 * steps), steps=steps, batch=4)
        for place, node in enumerate(nodes)
    )
    return Plan(round=0, step=0, members=members, deadline_ms=1000, fragments=(0,), reason="equal work")


def out(*nodes: NodeId) -> OpenWork:
    work: OpenWork = {}
    give_work(work, plan(*nodes), 3, Standing(0, 0, ((0, 0),), 0))
    return work


def purse(budget: int | None, owed: int = 0, **spec: int | str) -> Purse:
    return Purse(
        spec=CreditSpec(**{"price_micro": 100, **spec}),  # type: ignore[arg-type]
        budget_micro=budget,
        owed_micro=owed,
        tokens_a_sample=10,
    )


def hired(purse: Purse, wanted: Plan, work: OpenWork | None = None) -> list[NodeId]:
    return [item.node for item in hire(purse, wanted, work or {}, {}).plan.members]


def test_without_a_budget_everybody_is_hired() -> None:
    assert hired(purse(None), plan(ANN, BOB)) == [ANN, BOB]


def test_what_is_earned_and_what_is_out_is_not_promised_again() -> None:
    assert hired(purse(2 * COST), plan(BOB), out(ANN)) == [BOB]
    assert hired(purse(2 * COST - 1), plan(BOB), out(ANN)) == []
    assert hired(purse(2 * COST, owed=1), plan(BOB), out(ANN)) == []


def test_work_that_is_given_again_is_paid_once() -> None:
    assert hired(purse(COST), plan(ANN), out(ANN)) == [ANN]
    assert hired(purse(2 * COST - 1), plan(ANN, steps=4), out(ANN)) == []  # the larger of the two may come


def test_tokens_and_caps_are_reckoned_by_their_most() -> None:
    assert hired(purse(10 * COST, unit="tokens"), plan(ANN)) == [ANN]
    assert hired(purse(10 * COST - 1, unit="tokens"), plan(ANN)) == []
    assert hired(purse(50, most_micro=50), plan(ANN)) == [ANN]


def test_a_plan_that_lacks_somebody_says_why() -> None:
    found = hire(purse(COST), plan(ANN, BOB), {}, {ANN: 90, BOB: 80})
    assert [item.node for item in found.plan.members] == [BOB]
    assert found.plan.reason == "equal work; the budget pays 1 of 2"
    assert "has 0.000000 left to promise" in found.short
