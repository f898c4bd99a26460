"""Whose privacy budget is not spent yet: who can still be given work in a private run.

In flow the view, the seats and the run's guarantee; out flow the nodes to plan, words for the others, and the end of a
run in which nobody has any budget left. Invariant: what a node spent is what the log shows or what its own ledger says,
whichever is more; and a node holds to its budget whatever is asked of it here.
"""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.coordinator.seats import Seats
from shoal.runlog.view import Member, RunView
from shoal.strategy.planning import local_steps
from shoal.strategy.private import Guarantee, guarantee_of
from shoal.strategy.recipe import Recipe, recipe_in_log


class PrivacyBudgets:
    """One run's. Without a `privacy` section everybody may do everything."""

    def __init__(self, recipe: Recipe, view: RunView, seats: Seats) -> None:
        self._recipe, self._view, self._seats = recipe, view, seats
        self.guarantee: Guarantee | None = None
        if view.genesis is not None and recipe.privacy is not None:
            # As it was founded: what the organiser changes on the way does not change what nodes promised.
            founded = recipe_in_log(view.genesis.recipe)
            self.guarantee = guarantee_of(founded, view.genesis.manifest.train_items)

    def able(self, nodes: list[NodeId]) -> list[NodeId]:
        """Those who have budget for another round."""
        return [node for node in nodes if not self.objection(node)]

    def objection(self, node: NodeId) -> str:
        """Why this node can be given no more work; "" if it can."""
        guarantee, member = self.guarantee, self._view.members.get(node)
        if guarantee is None or member is None:
            return ""
        if not self._has_part(node):
            return f"it follows only: the training data has {guarantee.parts} parts, and others have them all"
        return guarantee.exhausted(self.spent(member), self._wanted())

    def exhausted(self) -> dict[NodeId, str]:
        """Who has no budget for another round, and why."""
        if self.guarantee is None or self.guarantee.releases is None:
            return {}
        wanted = self._wanted()
        found = {
            node: self.guarantee.exhausted(self.spent(one), wanted)
            for node, one in self._view.members.items()
        }
        return {node: why for node, why in found.items() if why}

    def spent(self, member: Member) -> int:
        """Releases of a member, as far as they are known."""
        seat = self._seats.by_node.get(member.node)
        stated = seat.last_beat.spent if seat and seat.last_beat else 0
        shown = member.steps if self._by_sample() else member.updates
        return max(shown, min(stated, 1 << 30))

    def epsilon(self, member: Member) -> float | None:
        """What a member has spent; None in a run without privacy."""
        return None if self.guarantee is None else self.guarantee.epsilon(self.spent(member))

    def all_spent(self) -> str:
        """Why the run is over, if nobody here has any budget left; "" while somebody has."""
        guarantee = self.guarantee
        if guarantee is None or guarantee.releases is None:
            return ""
        here = [m.node for m in self._view.members.values() if m.present and self._has_part(m.node)]
        if not here or self.able(here):
            return ""
        return (
            f"the privacy budget is spent: no node has another round within epsilon {guarantee.spec.epsilon:g} "
            f"(delta {guarantee.spec.delta:g})"
        )

    def _has_part(self, node: NodeId) -> bool:
        """Parts are given to members in the order in which they joined."""
        guarantee = self.guarantee
        if guarantee is None or not self._by_sample():
            return True
        return list(self._view.members).index(node) < guarantee.parts

    def _wanted(self) -> int:
        return local_steps(self._recipe, self._view) if self._by_sample() else 1

    def _by_sample(self) -> bool:
        return self.guarantee is not None and self.guarantee.spec.unit == "sample"
