"""Members that fell silent, where members vote: those who are gone must not be counted for ever.

In flow who is live; out flow who is to be logged as having left. Invariant: nobody is taken to have left before it was
silent for several leases under this leader, and where members do not vote nobody is.
"""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Membership

LEASES = 3


class Absent:
    """One leader's watch over the members that are not there."""

    def __init__(self, membership: Membership) -> None:
        self._votes = bool(membership.coordinators)
        self._patience_s = LEASES * membership.lease_s
        self._since: dict[NodeId, float] = {}

    def gone(self, view: RunView, live: frozenset[NodeId], now: float) -> list[tuple[NodeId, str]]:
        """Who has left without a word, and why it is taken to have."""
        if not self._votes:
            return []
        missing = [node for node, member in view.members.items() if member.present and node not in live]
        self._since = {node: self._since.get(node, now) for node in sorted(missing)}
        reason = f"silent for {self._patience_s:g} s"
        return [(node, reason) for node, since in self._since.items() if now - since > self._patience_s]
