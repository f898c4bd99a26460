"""Who works for a run's price, and whom its budget can pay. Pure.

In flow the recipe's credit section, nodes' minimum prices and a plan; out flow who is planned, and why others are not.
Invariant: a plan that leaves here promises no more than the budget has left, whatever its members deliver; so nobody's
pay is ever cut because somebody else's work was paid first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from shoal.base.ids import NodeId
from shoal.credit.spec import MOST_MICRO, CreditSpec, show_credits
from shoal.runlog.entries import Assignment, Plan
from shoal.runlog.work import OpenWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Purse:
    """What is left to promise."""

    spec: CreditSpec
    budget_micro: int | None
    owed_micro: int
    """What was earned so far."""
    tokens_a_sample: int

    def left_micro(self, out: OpenWork, *, besides: Iterable[NodeId] = ()) -> int:
        """The budget, less what was earned and what may come of the work that is out, `besides` that of these."""
        assert self.budget_micro is not None
        others = [plans.values() for node, plans in out.items() if node not in set(besides)]
        promised = sum(max(self.most_micro(one.assignment) for one in works) for works in others)
        return max(0, self.budget_micro - self.owed_micro - promised)

    def most_micro(self, work: Assignment) -> int:
        """What an update for this work may cost."""
        units = work.data.count * (1 if self.spec.unit == "samples" else self.tokens_a_sample)
        return min(units * self.spec.price_micro, self.spec.most_micro or MOST_MICRO)


@dataclass(frozen=True, slots=True)
class Hired:
    """A plan within the budget, and why it has not everybody."""

    plan: Plan
    short: str = ""


def asks_too_much(spec: CreditSpec, minimum_micro: int) -> str:
    """Why a node with this minimum is not planned; "" if the price is enough for it."""
    if minimum_micro <= spec.price_micro:
        return ""
    unit = spec.unit.removesuffix("s")
    return (
        f"it asks for {show_credits(minimum_micro)} credits a {unit}, and the run pays "
        f"{show_credits(spec.price_micro)}"
    )


def too_dear(spec: CreditSpec, minimums: Iterable[int]) -> str:
    """How many of these are left out for their price; "" for none."""
    count = sum(minimum > spec.price_micro for minimum in minimums)
    price = f"{show_credits(spec.price_micro)} credits a {spec.unit.removesuffix('s')}"
    return (
        f"{count} node{'s' if count != 1 else ''} not planned, asking for more than {price}" if count else ""
    )


def hire(purse: Purse, plan: Plan, out: OpenWork, minimums: Mapping[NodeId, int]) -> Hired:
    """The plan's members as far as the budget can pay them, those who ask for least first."""
    if purse.budget_micro is None or not plan.members:
        return Hired(plan)
    left = purse.left_micro(out, besides=[item.node for item in plan.members])
    chosen: set[NodeId] = set()
    for item in sorted(plan.members, key=lambda one: (minimums.get(one.node, 0), one.node)):
        cost = max([purse.most_micro(item), *_costs(purse, out, item.node)])
        if cost <= left:
            left -= cost
            chosen.add(item.node)
    if len(chosen) == len(plan.members):
        return Hired(plan)
    kept = tuple(item for item in plan.members if item.node in chosen)
    least = min(purse.most_micro(item) for item in plan.members)
    short = (
        f"the budget of {show_credits(purse.budget_micro)} credits has {show_credits(left)} left to promise, and "
        f"the next update may cost {show_credits(least)}"
    )
    reason = f"{plan.reason}; the budget pays {len(kept)} of {len(plan.members)}"
    return Hired(msgspec.structs.replace(plan, members=kept, reason=reason), short)


def _costs(purse: Purse, out: OpenWork, node: NodeId) -> list[int]:
    return [purse.most_micro(one.assignment) for one in out.get(node, {}).values()]
