"""Credit with real processes: prices, a budget that runs out and is raised, a ledger and receipts that outlive all."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from shoal.apps.cli import WRONG_LINE, app, find
from shoal.base.errors import ShoalError
from shoal.runlog.entries import Funded, Plan

from .fleet import START_S, TINY, Fleet

PRICE = 1_000
UPDATE = 2 * 16 * PRICE  # two steps of sixteen samples
RECIPE: dict[str, Any] = {
    **TINY,
    "membership": {**TINY["membership"], "min_nodes": 2},
    "credit": {"price_micro": PRICE, "budget_micro": 6 * UPDATE, "coordinator_percent": 5},
}


def shoal(*arguments: str) -> Any:
    """What a command answers; in this process, since starting one takes longer than what it does."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def paused(fleet: Fleet) -> bool:
    return bool(fleet.status()["state"] == "paused")


def test_a_paid_run_from_its_price_to_its_last_receipt(fleet: Fleet) -> None:
    fleet.serve(RECIPE)
    for name, least in (("ada", "0.001"), ("ben", "0"), ("cleo", "0.0011")):
        fleet.join(name, "--min-price", least)
    fleet.until(lambda: paused(fleet), 2 * START_S, "the budget to be spent")

    # Who asks for too much is never planned, and is told why; so is everybody when the budget is spent.
    status = fleet.status()
    assert status["waiting_for"].startswith("more budget: the budget of 0.192000 credits has")
    cleo = next(node for node in status["nodes"] if node["name"] == "cleo")
    assert "asks for 0.001100 credits a sample, and the run pays 0.001000" in cleo["why"]
    plans = [link.entry.body for link in fleet.links() if isinstance(link.entry.body, Plan)]
    assert all(cleo["node"] not in {item.node for item in plan.members} for plan in plans)
    fleet.until(
        lambda: "paused: the budget of 0.192000" in fleet.nodes["ada"].out.read_text(), START_S, "telling ada"
    )
    spent = shoal("credit", "verify", fleet.run, *fleet.place)
    assert 0 < spent["total_micro"] <= 6 * UPDATE and spent["pages"] > 0

    # A pause outlives its coordinator; more budget ends it.
    assert fleet.coordinator is not None
    fleet.coordinator.kill()
    fleet.serve()
    fleet.until(lambda: paused(fleet), START_S, "still pausing")
    refused = CliRunner().invoke(app, ["run", "fund", fleet.run, "none", "--home", str(fleet.home)])
    assert find(refused.exception, ShoalError).code == WRONG_LINE
    assert "amount of credits" in str(refused.exception)
    before = fleet.length()
    shoal("run", "fund", fleet.run, "0.128", "--home", str(fleet.home))
    fleet.until(
        lambda: fleet.length() > before + 3 and paused(fleet), START_S, "going on, and the next pause"
    )
    assert [body.add_micro for link in fleet.links() if isinstance(body := link.entry.body, Funded)] == [
        128_000
    ]

    # At the end everybody holds a receipt for all that the log gives them.
    shoal("run", "stop", fleet.run, "--home", str(fleet.home))
    for name in ("ada", "ben"):
        assert fleet.nodes[name].ended() == 0
        held = shoal("credit", "check", "--node", "--home", str(fleet.home_of(name)))
        shown = shoal("credit", "show", fleet.run, *fleet.place)["nodes"]
        (earned,) = (one["micro"] for one in shown if one["node"] == held["node"])
        assert held["holds"] and held["cumulative_micro"] == earned > 0
    verified = shoal("credit", "verify", fleet.run, *fleet.place)
    assert spent["total_micro"] < verified["total_micro"] <= 10 * UPDATE
    assert verified["pages"] > spent["pages"]
