"""Rounds: when one is sealed, and who is given work.

In flow the view, who is here and which claims are kept; out flow the seals and plans to append next. Invariant: it
decides and appends nothing; whatever it returns, the log checks like any other entry.
"""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.coordinator.claims import Claims
from shoal.coordinator.seats import Seats
from shoal.runlog.entries import Plan, Seal
from shoal.runlog.view import RunView
from shoal.runlog.work import NEWS
from shoal.strategy.planning import UNKNOWN, Measured, make_plan
from shoal.strategy.recipe import Recipe
from shoal.strategy.seal_rules import Close, Replan, RoundNow, SealRule


class Rounds:
    def __init__(
        self, recipe: Recipe, rule: SealRule, view: RunView, seats: Seats, claims: Claims, now: float
    ) -> None:
        self.waiting_for = "nodes to join"
        """In words, what the run is waiting for now."""
        self._recipe = recipe
        self._rule = rule
        self._view = view
        self._seats = seats
        self._claims = claims
        self._opened_at = self._planned_at = self._sealed_at = now
        self._measured = UNKNOWN

    def decide(self, now: float) -> Seal | Plan | None:
        """What the open round needs: its seal, more work for somebody, or nothing yet."""
        planned = frozenset(self._view.planned)
        decision = self._rule.decide(
            RoundNow(
                now=now,
                opened_at=self._opened_at,
                live=planned & self._seats.awaited(now),
                planned=planned,
                claimed=self._claims.nodes(),
                arrived_at=self._claims.arrivals(),
                sealed_at=self._sealed_at,
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
        accepted, rejected = self._claims.settle()
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
        if at_work or self._claims.nodes() or not self._too_few(idle, now):
            return self._begin(idle, now, "") if idle else self.open_for_late(now)
        return None

    def open_for_late(self, now: float) -> Plan:
        """A round without new work."""
        return self._begin([], now, "for updates of earlier rounds")

    def _again(self, now: float, reason: str) -> Plan | None:
        """Nobody delivered: new work for whoever is ready; where work may be late, for whoever has none."""
        ready = self._idle(now) if self._rule.plans_at_once else self._seats.ready(now, self._view)
        return None if self._too_few(ready, now) else self._begin(ready, now, f"again: {reason}")

    def _more(self, now: float) -> Plan | None:
        """Where nobody waits for anybody: work for those who have none, several at a time."""
        if not self._rule.plans_at_once or now - self._planned_at < self._rule.min_interval_s:
            return None
        idle = self._idle(now)
        return self._plan(idle, now, "at once") if idle else None

    def _idle(self, now: float) -> list[NodeId]:
        return [node for node in self._seats.ready(now, self._view) if node not in self._view.planned]

    def _too_few(self, nodes: list[NodeId], now: float) -> bool:
        """True, and said, if a round has to wait for more nodes."""
        needed = self._recipe.membership.min_nodes if self._view.round == 0 else 1
        missing = needed - len(nodes)
        if missing > 0:
            self.waiting_for = f"{missing} more ready node{'s' if missing > 1 else ''} to begin a round"
            self._opened_at = now
        return missing > 0

    def _begin(self, nodes: list[NodeId], now: float, why: str) -> Plan:
        self._opened_at = now
        return self._plan(nodes, now, why)

    def _plan(self, nodes: list[NodeId], now: float, why: str) -> Plan:
        self._planned_at = now
        out = {*nodes, *self._view.planned}
        self.waiting_for = f"{len(self._claims.nodes())} of {len(out)} updates"
        return make_plan(self._recipe, self._view, nodes, why, self._measured)

    def _measure(self, now: float) -> None:
        """How much of the round that ends now was training."""
        plan = self._view.plan
        step_s = self._seats.step_s(self._view)
        if plan is None or not plan.members or not step_s:
            return
        idle_s = max(0.0, now - self._opened_at - step_s * max(member.steps for member in plan.members))
        before = self._measured.idle_s or idle_s
        self._measured = Measured(step_s=step_s, idle_s=before + NEWS * (idle_s - before))
