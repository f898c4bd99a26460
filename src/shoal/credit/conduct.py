"""How reliably members deliver, from the log alone.

In flow plans and what seals settled or gave up; out flow a number for each member. Invariant: nobody is blamed for a
round in which most of those who had work failed, for work that was planned again, refused, undone, or for leaving; so
a dead peer never lowers another member's number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from shoal.base.ids import NodeId
from shoal.runlog.entries import Claim, Plan
from shoal.runlog.work import OpenWork

REMEMBERED = 16
LEAST = (1, 2)
"""However unreliable a member was, what it does deliver is worth half."""

Open = Mapping[NodeId, frozenset[tuple[int, int]]]
"""Open work by member: (position of the plan, round)."""


def open_work(planned: OpenWork) -> dict[NodeId, frozenset[tuple[int, int]]]:
    return {
        node: frozenset((position, one.round) for position, one in plans.items())
        for node, plans in planned.items()
    }


class Conduct:
    """What members did with the work they were given."""

    def __init__(self) -> None:
        self._outcomes: dict[NodeId, deque[bool]] = {}
        self._delivered: dict[NodeId, int] = {}
        """The latest round for which a member's claim was accepted."""
        self._assigned: dict[int, set[NodeId]] = {}
        self._counted: dict[int, int] = {}
        """By round, how many claims for it were accepted."""

    def availability(self, node: NodeId) -> tuple[int, int]:
        """Delivered of the latest rounds, with one to the good, as a fraction; the whole for newcomers."""
        outcomes = self._outcomes.get(node, ())
        part, whole = sum(outcomes) + 1, len(outcomes) + 1
        return (part, whole) if 2 * part >= whole else LEAST

    def planned(self, plan: Plan) -> None:
        for item in plan.members:
            self._assigned.setdefault(plan.round, set()).add(item.node)

    def sealed(
        self, claims: Iterable[Claim], excused: frozenset[NodeId], before: Open, after: Open
    ) -> list[tuple[NodeId, int]]:
        """Take a seal: the members who missed a round by their own doing, with the round. `excused` are those who
        left, or whose claim came and was refused."""
        for claim in claims:
            self._delivered[claim.node] = max(claim.round, self._delivered.get(claim.node, -1))
            self._counted[claim.round] = self._counted.get(claim.round, 0) + 1
            self._note(claim.node, delivered=True)
        missed = [
            (node, round)
            for node in sorted(before)
            for round in sorted({round for _, round in before[node] - after.get(node, frozenset())})
            if node not in excused and self._blamed(node, round)
        ]
        for node, _ in missed:
            self._note(node, delivered=False)
        self._forget(after)
        return missed

    def _blamed(self, node: NodeId, round: int) -> bool:
        most_delivered = 2 * self._counted.get(round, 0) >= len(self._assigned.get(round, ()))
        return round > self._delivered.get(node, -1) and most_delivered

    def _note(self, node: NodeId, *, delivered: bool) -> None:
        self._outcomes.setdefault(node, deque(maxlen=REMEMBERED)).append(delivered)

    def _forget(self, still_open: Open) -> None:
        """Rounds that nobody has work from any more are decided."""
        rounds = {round for works in still_open.values() for _, round in works}
        for known in (self._assigned, self._counted):
            for round in [round for round in known if round not in rounds]:
                del known[round]
