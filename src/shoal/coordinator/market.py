"""Price and budget between a run and its nodes: who is willing, what can be paid, and what each is told.

In flow the seats with their minimum prices and the run's credit so far; out flow the nodes to plan, plans within the
budget, and words. Invariant: it decides nothing but who is left out; with neither a budget nor minimums, nobody is.
"""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.coordinator.seats import Seats
from shoal.credit.crediting import Crediting
from shoal.runlog.entries import Plan
from shoal.strategy.hiring import Purse, asks_too_much, hire, too_dear


class Market:
    def __init__(self, crediting: Crediting, seats: Seats) -> None:
        self._crediting = crediting
        self._seats = seats
        self.short = ""
        """Why the last plan has not everybody who was willing; "" if it has."""

    def willing(self, nodes: list[NodeId]) -> list[NodeId]:
        """Those for whom the price is enough."""
        price, seats = self._crediting.spec.price_micro, self._seats.by_node
        return [node for node in nodes if node not in seats or seats[node].min_price_micro <= price]

    def unwilling(self, nodes: list[NodeId]) -> str:
        """In words, how many are not."""
        seats = self._seats.by_node
        return too_dear(
            self._crediting.spec, [seats[node].min_price_micro for node in nodes if node in seats]
        )

    def objection(self, node: NodeId) -> str:
        """Why this node does not work for the run's price; "" if it does."""
        return asks_too_much(self._crediting.spec, self._minimum(node))

    def within_budget(self, plan: Plan) -> Plan | None:
        """The plan with as many of its members as can be paid; None if none can."""
        view = self._crediting.view
        hired = hire(self._purse(), plan, view.planned, {i.node: self._minimum(i.node) for i in plan.members})
        self.short = hired.short
        return hired.plan if hired.plan.members or not plan.members else None

    def note(self, node: NodeId) -> str:
        """What a node without work is told; "" if nothing keeps it from the next plan."""
        view = self._crediting.view
        if view.stopped is not None or node in view.planned:
            return ""
        why = self.objection(node) or self.short
        return f"paused: {why}" if why else ""

    def _minimum(self, node: NodeId) -> int:
        seat = self._seats.by_node.get(node)
        return seat.min_price_micro if seat else 0

    def _purse(self) -> Purse:
        crediting, genesis = self._crediting, self._crediting.view.genesis
        return Purse(
            spec=crediting.spec,
            budget_micro=crediting.budget_micro,
            owed_micro=crediting.owed_micro,
            tokens_a_sample=max(1, genesis.manifest.context if genesis else 1),
        )
