"""Rounds: when one is sealed, and who is given work.

In flow the view, who is here and which claims are kept; out flow the seals and plans to append next. Invariant: it
decides and appends nothing; whatever it returns, the log checks like any other entry.
"""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.coordinator.claims import Claims
from shoal.coordinator.market import Market
from shoal.coordinator.private import PrivacyBudgets
from shoal.coordinator.seats import Seats
from shoal.planner.loop import AwarePlanner, Came
from shoal.runlog.entries import Claim, Plan, Seal
from shoal.runlog.view import RunView
from shoal.runlog.work import NEWS
from shoal.strategy.planning import UNKNOWN, Measured, make_plan
from shoal.strategy.recipe import Recipe
from shoal.strategy.seal_rules import Close, Replan, RoundNow, SealRule


class Rounds:
    def __init__(
        self,
        recipe: Recipe,
        rule: SealRule,
        view: RunView,
        seats: Seats,
        claims: Claims,
        market: Market,
        now: float,
        planner: AwarePlanner | None = None,
        privacy: PrivacyBudgets | None = None,
    ) -> None:
        self._privacy = privacy
        self.waiting_for = "nodes to join"
        """In words, what the run is waiting for now."""
        self._recipe = recipe
        self._rule = rule
        self._view = view
        self._seats = seats
        self._claims = claims
        self._market = market
        self._opened_at = self._planned_at = self._sealed_at = now
        self._measured = UNKNOWN
        self._planner = planner
        self._given_at: dict[NodeId, float] = {}

    def decide(self, now: float) -> Seal | Plan | None:
        """What the open round needs: its seal, more work for somebody, or nothing yet."""
        planned = frozenset(self._view.planned)
        live, claimed = planned & self._seats.awaited(now), self._claims.nodes()
        decision = self._rule.decide(
            RoundNow(
                now=now,
                opened_at=self._opened_at,
                live=live,
                planned=planned,
                claimed=claimed,
                arrived_at=self._claims.arrivals(),
                sealed_at=self._sealed_at,
                timing=self._planner.timing(claimed, live, now) if self._planner else None,
            )
        )
        self.waiting_for = decision.reason
        if isinstance(decision, Close):
            return self.seal(now, decision.reason)
        again = self._again(now, decision.reason) if isinstance(decision, Replan) else None
        return again or self._more(now)

    def seal(self, now: float, reason: str) -> Seal:
        """Everything that is kept, as the seal of the open round."""
        assert self._view.plan is not None
        self._measure(now)
        live = self._seats.awaited(now)
        whole = self._claims.fleet_weight(live) if self._rule.shares_fleet else 0
        came = self._claims.came()
        accepted, rejected = self._claims.settle()
        self._learn(came, live, now, [item.node for item in rejected])
        self._sealed_at = now
        return Seal(
            round=self._view.round,
            fragments=self._view.plan.fragments,
            accepted=accepted,
            rejected=rejected,
            reason=reason,
            whole=whole,
        )

    def open(self, now: float) -> Plan | None:
        """The next round: for those who are ready and free, or for work that is still out."""
        idle = self._idle(now)
        at_work = frozenset(self._view.planned) & self._seats.awaited(now)
        out = at_work or self._claims.nodes()
        if not out and self._too_few(idle, now):
            return None
        plan = self._begin(idle, now, "") if idle else None
        return plan or (self.open_for_late(now) if out else None)

    def open_for_late(self, now: float) -> Plan:
        """A round without new work."""
        plan = self._begin([], now, "for updates of earlier rounds")
        assert plan is not None
        return plan

    def _again(self, now: float, reason: str) -> Plan | None:
        """Nobody delivered: new work for whoever is ready; where work may be late, for whoever has none."""
        ready = self._idle(now) if self._rule.plans_at_once else self._ready(now)
        return None if self._too_few(ready, now) else self._begin(ready, now, f"again: {reason}")

    def _more(self, now: float) -> Plan | None:
        """Where nobody waits for anybody: work for those who have none, several at a time."""
        if not self._rule.plans_at_once or now - self._planned_at < self._rule.min_interval_s:
            return None
        idle = self._idle(now)
        return self._plan(idle, now, "at once") if idle else None

    def _idle(self, now: float) -> list[NodeId]:
        return [node for node in self._ready(now) if node not in self._view.planned]

    def _ready(self, now: float) -> list[NodeId]:
        """Who can be given work, and wants it for the run's price."""
        ready = self._market.willing(self._seats.ready(now, self._view))
        return self._privacy.able(ready) if self._privacy else ready

    def _too_few(self, nodes: list[NodeId], now: float) -> bool:
        """True, and said, if a round has to wait for more nodes."""
        needed = self._recipe.membership.min_nodes if self._view.round == 0 else 1
        missing = needed - len(nodes)
        if missing > 0:
            dear = self._market.unwilling(self._seats.ready(now, self._view))
            self.waiting_for = f"{missing} more ready node{'s' if missing > 1 else ''} to begin a round"
            self.waiting_for += f"; {dear}" if dear else ""
            private = self._privacy is not None and self._privacy.guarantee is not None
            self.waiting_for += " with privacy budget left" if private else ""
            self._opened_at = now
        return missing > 0

    def _begin(self, nodes: list[NodeId], now: float, why: str) -> Plan | None:
        self._opened_at = now
        return self._plan(nodes, now, why)

    def _plan(self, nodes: list[NodeId], now: float, why: str) -> Plan | None:
        """A plan for these nodes; None, and said, if the run's budget cannot pay any of them."""
        self._planned_at = now
        dear = self._market.unwilling(self._seats.ready(now, self._view)) if nodes else ""
        why = "; ".join(filter(None, (why, dear)))
        plan = self._market.within_budget(self._make(nodes, now, why))
        if plan is None:
            self.waiting_for = f"more budget: {self._market.short}"
            return None
        out = {*(item.node for item in plan.members), *self._view.planned}
        self.waiting_for = f"{len(self._claims.nodes())} of {len(out)} updates"
        return plan

    def _make(self, nodes: list[NodeId], now: float, why: str) -> Plan:
        """Equal work, or by what was measured of each."""
        if self._planner is None:
            return make_plan(self._recipe, self._view, nodes, why, self._measured)
        self._planner.monitor(self._seats.live(now), now)
        plan = self._planner.plan(nodes, why, whole=self._view.plan is None and bool(nodes))
        self._given_at.update({item.node: now for item in plan.members})
        return plan

    def _learn(
        self,
        came: dict[NodeId, tuple[Claim, float]],
        live: frozenset[NodeId],
        now: float,
        rejected: list[NodeId],
    ) -> None:
        """Compare the round that ends now with what was planned, and correct what is expected."""
        if self._planner is None:
            return
        after = {
            node: Came(claim=claim, after_s=at - self._given_at[node], at=at)
            for node, (claim, at) in came.items()
            if node in self._given_at
        }
        found = self._planner.reflect(after, live, now - self._opened_at)
        self._planner.adapt(found, after, rejected)

    def _measure(self, now: float) -> None:
        """How much of the round that ends now was training."""
        plan = self._view.plan
        step_s = self._seats.step_s(self._view)
        if plan is None or not plan.members or not step_s:
            return
        idle_s = max(0.0, now - self._opened_at - step_s * max(member.steps for member in plan.members))
        before = self._measured.idle_s or idle_s
        self._measured = Measured(step_s=step_s, idle_s=before + NEWS * (idle_s - before))
