"""Credit as the run goes: the ledger grows with the log, nodes keep receipts, prices and budgets are respected."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.coordinator.events import FundAsked, StopAsked
from shoal.credit.account import Account, account_of
from shoal.credit.ledger import PREFIX, PayReceipt, check_ledger, check_receipt, read_receipt
from shoal.runlog.entries import Funded, Plan
from shoal.runlog.files import FileLogStore

from .harness import COORDINATOR, RUN, Fleet, Machine, toy_recipe

PRICE = 1_000
CREDIT: dict[str, Any] = {"price_micro": PRICE, "rule": "quality", "coordinator_percent": 2}
UPDATE = 6 * PRICE  # two samples a step, three steps


def fleet_of(nodes: int, seed: int = 1, **credit: Any) -> Fleet:
    return Fleet(seed=seed, nodes=nodes, recipe=toy_recipe(credit={**CREDIT, **credit}))


def account(fleet: Fleet) -> Account:
    return account_of(fleet.referee.entries, fleet.recipe.credit)


def receipts(fleet: Fleet, machine: Machine) -> list[PayReceipt]:
    """What a node has kept on its disk, in the order of pages."""
    folder = f"runs/{RUN}/receipts"
    names = [name for name in machine.disk.list(folder) if name.endswith(".receipt")]
    public = fleet.machines[COORDINATOR].identity.public
    found = [read_receipt(machine.disk.read(f"{folder}/{name}"), RUN, public) for name in names]
    assert all(receipt is not None for receipt in found)
    return [receipt for receipt in found if receipt is not None]


def check_books(fleet: Fleet) -> Account:
    """The stored ledger and everybody's receipts are what the log gives."""
    found = account(fleet)
    store = FileLogStore(fleet.machines[COORDINATOR].disk, lambda point: None)
    pages = [page for _, page in sorted(store.kept(RUN, PREFIX).items())]
    public = fleet.machines[COORDINATOR].identity.public
    assert check_ledger(pages, RUN, public, found.lines) == len({line.position for line in found.lines})
    for machine in fleet.nodes:
        for receipt in receipts(fleet, machine):
            assert receipt.node == machine.identity.node
            assert check_receipt(receipt, fleet.view.hashes[receipt.position], found.lines)
    return found


def test_a_run_to_its_end_leaves_everybody_a_receipt_for_all_they_earned() -> None:
    fleet = fleet_of(3)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(4)
        await fleet.coordinator.post(RUN, StopAsked("enough"))
        await fleet.until(
            lambda: all(m.task is not None and m.task.done() for m in fleet.nodes), 60, "the end"
        )

    fleet.play(story)
    found = check_books(fleet)
    assert found.total_micro > 3 * UPDATE
    for machine in fleet.nodes:
        kept = receipts(fleet, machine)
        assert len(kept) >= 4, "one for each round"
        assert kept[-1].cumulative_micro == found.balances[machine.identity.node]


@pytest.mark.parametrize("seed", [1, 2])
def test_deaths_of_coordinator_and_nodes_leave_one_ledger_that_is_the_logs(seed: int) -> None:
    fleet = fleet_of(3, seed=seed)

    async def story() -> None:
        fleet.start()
        for _ in range(3):
            await fleet.rounds(2)
            fleet.kill(COORDINATOR)
            fleet.start(COORDINATOR)
            fleet.kill("n1")
            fleet.start("n1")
        await fleet.rounds(2)
        await fleet.coordinator.post(RUN, StopAsked("enough"))
        await fleet.until(
            lambda: all(m.task is not None and m.task.done() for m in fleet.nodes), 90, "the end"
        )

    fleet.play(story)
    found = check_books(fleet)
    for machine in fleet.nodes:
        assert receipts(fleet, machine)[-1].cumulative_micro == found.balances[machine.identity.node]


def test_a_node_that_asks_for_more_than_the_price_is_never_planned_and_knows_why() -> None:
    fleet = fleet_of(3)
    fleet.machines["n2"].min_price_micro = PRICE + 1

    async def story() -> None:
        fleet.start()
        await fleet.rounds(3)
        told = "paused: it asks for 0.001001 credits a sample, and the run pays 0.001000"
        await fleet.until(lambda: fleet.machines["n2"].node.machine.doing == told, 10, "telling it")

    fleet.play(story)
    plans = [body for body in fleet.bodies(Plan) if isinstance(body, Plan) and body.members]
    assert all(fleet.id_of("n2") not in {item.node for item in plan.members} for plan in plans)
    assert "1 node not planned, asking for more than 0.001000 credits a sample" in plans[-1].reason
    check_books(fleet)


def short_of(fleet: Fleet) -> str:
    served = fleet.coordinator.runs.get(RUN)
    return served.machine.out_of_budget if served else ""


def test_a_spent_budget_pauses_the_run_for_everybody_until_it_is_raised() -> None:
    fleet = fleet_of(2, budget_micro=5 * UPDATE)

    async def story() -> None:
        fleet.start()
        await fleet.until(lambda: bool(short_of(fleet)), 60, "the pause")
        sealed = len(fleet.referee.rounds_sealed)
        assert 2 <= sealed <= 3
        told = "paused: the budget of 0.030000 credits has"
        for node in fleet.nodes:
            await fleet.until(lambda node=node: node.node.machine.doing.startswith(told), 20, "telling it")  # type: ignore[misc]
        waiting = fleet.coordinator.runs[RUN].machine.waiting_for
        assert waiting.startswith("more budget: the budget of 0.030000 credits has")
        fleet.kill(COORDINATOR)  # a pause outlives its coordinator
        fleet.start(COORDINATOR)
        await fleet.until(lambda: bool(short_of(fleet)), 30, "still pausing")
        await fleet.coordinator.post(RUN, FundAsked(4 * UPDATE, "more"))
        await fleet.rounds(2)
        await fleet.until(lambda: bool(short_of(fleet)), 60, "the next pause")

    fleet.play(story)
    found = check_books(fleet)
    assert len(fleet.bodies(Funded)) == 1
    assert found.total_micro <= 9 * UPDATE
    assert not [line for line in found.lines for factor in line.factors if factor.name == "budget"]
