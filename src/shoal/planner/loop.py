"""The planner's loop: monitor, reason, act, reflect, adapt.

In flow telemetry, what claims came when, and the view; out flow plans and how long to wait. Invariant: it appends
nothing and reads no clock; what it remembers between rounds (standings, corrections) is in no plan but through its
effects, which are there with their reasons, so that a log is replayed without any of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shoal.base.ids import NodeId
from shoal.codec.sizing import bytes_per_value
from shoal.codec.sparse import SparseCodec
from shoal.measure.forecast import Quantile, quantile
from shoal.measure.telemetry import Telemetry
from shoal.planner.aware import Decision, Question, decide
from shoal.planner.codecs import Choice
from shoal.planner.estimates import Traffic, step_seconds, sync_seconds
from shoal.planner.health import Health, HealthWeights, Standing, Tier, health, stand
from shoal.runlog.entries import Claim, Plan
from shoal.runlog.view import RunView
from shoal.strategy.planning import Measured, local_steps, make_plan
from shoal.strategy.recipe import Recipe
from shoal.strategy.seal_rules import Timing

BELIEF = 0.5
"""How far a correction goes towards what was seen."""
MOST_CORRECTION_S = 600.0
TOLD_WORST = 3
SOON_S = 0.5
"""What is no later than this is in time."""
OFF = 1.3
"""A node whose claim took this much longer than expected is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """A claim that was kept, and how long after its plan."""

    claim: Claim
    after_s: float
    at: float
    """The moment, by the coordinator's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflection:
    """What was expected of a round, and what came of it."""

    expected_s: float
    took_s: float
    off: Mapping[NodeId, float]
    """By node, how many seconds longer its line took than the model says, as far as that is known."""
    missed: Mapping[NodeId, float]
    """Who did not come in time, and how many seconds after that the round was closed."""
    words: str


class AwarePlanner:
    """One run's. `plan` and `timing` may be asked at any time; `reflect` once, when a round is sealed."""

    def __init__(self, recipe: Recipe, view: RunView, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self.standings: dict[NodeId, Standing] = {}
        self.health: dict[NodeId, Health] = {}
        self.decision: Decision | None = None
        """The last one for a whole round."""
        self._recipe = recipe
        self._view = view
        self._corrections: dict[NodeId, float] = {}
        self._given: dict[NodeId, tuple[float, float]] = {}
        """By node with work out: when its claim is expected, and what the model says of its line."""
        self._came_at: dict[NodeId, float] = {}
        self._idle_s = Quantile(0.5)
        """Of a round, what devices did not train though they might have: making claims, merging, evaluating."""
        self._update_bytes = 0.0
        self._enough_at: float | None = None
        self._lesson = ""
        section = recipe.strategy.planner
        self._weights = HealthWeights(**section.health.model_dump())
        schedule = recipe.strategy.schedule
        self._goal = 1 - schedule.hide if schedule.hide is not None else section.utilisation
        self._overlaps = schedule.overlap > 0
        self._codecs = choices_of(recipe)
        self._codec = 0
        """The number of the last round's."""
        self._longest_s = recipe.strategy.seal_rule().deadline_s / 2

    # --- monitor -----------------------------------------------------------------------------------------

    def monitor(self, live: Collection[NodeId], now: float) -> None:
        """Who is here, and how well everybody is."""
        self.telemetry.look(live, now)
        self.health = health(self.telemetry.all_facts(live), self._weights)

    # --- reason ------------------------------------------------------------------------------------------

    def reason(self, nodes: Collection[NodeId], *, whole: bool) -> Decision:
        """What these nodes should do; `whole` for a round's first plan, which decides who rests."""
        if whole:
            self._judge(nodes)
        facts = self.telemetry.all_facts(nodes)
        self.health = {**self.health, **health(facts, self._weights)} if nodes else self.health
        standings = {node: self.standings.get(node, Standing()) for node in nodes}
        return decide(
            Question(
                facts=facts,
                health={node: self.health[node] for node in nodes},
                standings=standings,
                corrections=self._corrections,
                names={node: self._view.members[node].name for node in nodes if node in self._view.members},
                traffic=self._traffic(len(nodes)),
                steps=local_steps(self._recipe, self._view),
                batch=self._recipe.inner.batch_size,
                goal=self._goal,
                overlaps=self._overlaps,
                fixed_work=self._recipe.budget.rounds is not None,
                seconds_left=self._seconds_left(),
                longest_s=self._longest_s,
                idle_s=self._idle_s.next(),
                codecs=self._codecs,
                last_codec=self._codec,
                rounds_left=self._rounds_left(),
            )
        )

    def _judge(self, nodes: Collection[NodeId]) -> None:
        for node in nodes:
            if node in self.health:
                before = self.standings.get(node, Standing())
                self.standings[node] = stand(before, self.health[node], self._view.round)

    def _traffic(self, count: int) -> Traffic:
        out = max(count, len(self._view.planned))
        folded = self._recipe.strategy.digest is not None and self._recipe.strategy.digest.folders > 0
        received = min(2, out - 1) if folded else max(0, out - 1)
        return Traffic(update_bytes=self._update_bytes, sent=self._recipe.storage.receipts, received=received)

    def _seconds_left(self) -> float:
        """By the log's own times."""
        budget, view = self._recipe.budget.seconds, self._view
        if budget is None:
            return math.inf
        return max(1.0, budget - ((view.time_ms - view.began_ms) / 1000 if view.began_ms else 0.0))

    def _rounds_left(self) -> float:
        rounds = self._recipe.budget.rounds
        return math.inf if rounds is None else max(1.0, rounds - self._view.totals.rounds)

    # --- act ---------------------------------------------------------------------------------------------

    def plan(self, nodes: list[NodeId], why: str, *, whole: bool) -> Plan:
        """The plan for these nodes, less those who rest."""
        decision = self.reason(nodes, whole=whole)
        if whole:
            self.decision, self._enough_at = decision, None
            if decision.codec != self._codec:
                self._codec, self._idle_s = decision.codec, Quantile(0.5)  # Other updates idle otherwise.
        lesson, self._lesson = (self._lesson if whole else ""), ("" if whole else self._lesson)
        words = "; ".join(filter(None, (decision.reason if nodes else "", lesson, why)))
        facts = self.telemetry.all_facts(decision.shares)
        syncs = sync_seconds(facts, self._traffic(len(nodes)).scaled(self._codecs[decision.codec].size), {})
        for node, share in decision.shares.items():
            self._given[node] = (share.expected_ms / 1000, syncs[node])
        return make_plan(
            self._recipe,
            self._view,
            sorted(decision.shares),
            words,
            self._measured(),
            shares=decision.shares,
            deadline_s=decision.deadline_s,
        )

    def timing(self, claimed: Collection[NodeId], live: Collection[NodeId], now: float) -> Timing | None:
        """How long the open round should wait, now that these have come."""
        if self.decision is None or self.decision.deadline_s is None:
            return None
        work = {node: self._steps_out(node) for node in self._view.planned if node in live or node in claimed}
        share = sum(work.get(node, 0) for node in claimed) / max(1, sum(work.values()))
        if share >= self._recipe.strategy.planner.enough and self._enough_at is None:
            self._enough_at = now
        return Timing(
            deadline_s=self.decision.deadline_s,
            share=share,
            enough_at=self._enough_at,
            grace_s=self.decision.grace_s,
        )

    def _steps_out(self, node: NodeId) -> int:
        plans = self._view.planned[node]
        work = plans[max(plans)].assignment
        return work.steps * work.batch

    def _measured(self) -> Measured:
        """For those who ask what share of a round is not training: whether digests are worth it."""
        if self.decision is None or not self.decision.period_s:
            return Measured()
        facts = self.telemetry.all_facts(self.decision.shares)
        steps = [
            seconds for seconds in step_seconds(facts, self._recipe.inner.batch_size).values() if seconds
        ]
        traffic = self._traffic(len(facts)).scaled(self._codecs[self.decision.codec].size)
        syncs = sync_seconds(facts, traffic, self._corrections)
        middle = sorted(syncs.values())[len(syncs) // 2] if syncs else 0.0
        return Measured(step_s=max(steps, default=0.0), idle_s=middle)

    # --- reflect -----------------------------------------------------------------------------------------

    def reflect(self, came: Mapping[NodeId, Came], live: Collection[NodeId], took_s: float) -> Reflection:
        """Compare what was expected of the round with what happened."""
        off, late = {}, []
        for node, one in sorted(came.items()):
            given = self._given.pop(node, None)
            work = self._view.planned.get(node, {}).get(one.claim.plan)
            step_s = self.telemetry.facts(node).step_s
            if given is None or work is None or not step_s or not given[0]:
                continue
            here = sum(p.count for p in one.claim.data if p.start >= work.data.start) // work.assignment.batch
            line_s = max(0.0, one.after_s - here * step_s)
            off[node] = line_s - given[1]
            if one.after_s > OFF * given[0] + SOON_S:
                late.append((one.after_s / given[0], node))
        waited = {
            node: took_s - self._given.get(node, (math.inf, 0.0))[0]
            for node in sorted(self._view.planned)
            if node in live and node not in came
        }
        missed = {node: late_s for node, late_s in waited.items() if late_s > SOON_S}
        expected_s = self.decision.period_s if self.decision else 0.0
        names = [self._name(node) for _, node in sorted(late, reverse=True)[:TOLD_WORST]]
        words = f"the last round took {took_s:.1f} s, expected {expected_s:.1f} s" if expected_s else ""
        words += f", later than expected: {', '.join(names)}" if names and words else ""
        words += (
            f", not in time: {', '.join(map(self._name, [*missed][:TOLD_WORST]))}" if missed and words else ""
        )
        return Reflection(expected_s=expected_s, took_s=took_s, off=off, missed=missed, words=words)

    def _idle(self, came: Mapping[NodeId, Came]) -> list[float]:
        """What each did not train since its last claim, where there was one."""
        found = []
        for node, one in came.items():
            step_s, last = self.telemetry.facts(node).step_s, self._came_at.get(node)
            if last is not None and step_s:
                found.append(max(0.0, one.at - last - one.claim.steps * step_s))
        return found

    # --- adapt -------------------------------------------------------------------------------------------

    def adapt(self, found: Reflection, came: Mapping[NodeId, Came], rejected: Collection[NodeId]) -> None:
        """Correct what is expected of whom."""
        for node, off in found.off.items():
            before = self._corrections.get(node, 0.0)
            self._corrections[node] = _bounded(before + BELIEF * (off - before))
            self.telemetry.delivered(node, in_time=True)
        for node, late_s in found.missed.items():
            self._corrections[node] = _bounded(self._corrections.get(node, 0.0) + late_s)
            self.telemetry.delivered(node, in_time=False)
        self.telemetry.judged({node: one.claim.loss for node, one in came.items()}, rejected)
        sizes = [one.claim.size_bytes / self._part_of(one.claim) for one in came.values()]
        if sizes:
            self._update_bytes = sum(sizes) / len(sizes)
        if idle := self._idle(came):
            self._idle_s.take(quantile(idle, 0.5))
        self._came_at.update({node: one.at for node, one in came.items()})
        self._lesson = found.words

    def _part_of(self, claim: Claim) -> float:
        """How large an update is against a whole one by the recipe's own codec."""
        work = self._view.planned.get(claim.node, {}).get(claim.plan)
        return self._codecs[work.assignment.codec].size / work.assignment.thin if work else 1.0

    def correction_s(self, node: NodeId) -> float:
        """What its line is taken to need beyond the model."""
        return self._corrections.get(node, 0.0)

    def tier(self, node: NodeId) -> Tier:
        return self.standings.get(node, Standing()).tier

    def _name(self, node: NodeId) -> str:
        member = self._view.members.get(node)
        return (member.name if member else "") or node[:8]


def choices_of(recipe: Recipe) -> tuple[Choice, ...]:
    """The recipe's codecs: its own, and those that may take its place."""
    rules, codec = recipe.strategy.fold_rules(), recipe.strategy.codec
    names = (codec.kind, *(choice.kind for choice in codec.choices))
    own_bytes = bytes_per_value(rules.codec) if rules.choices else 1.0
    return tuple(
        Choice(
            name=name,
            size=bytes_per_value(one) / own_bytes if rules.choices else 1.0,
            density=one.density if isinstance(one, SparseCodec) else None,
        )
        for name, one in zip(names, (rules.codec, *rules.choices), strict=True)
    )


def _bounded(seconds: float) -> float:
    return min(max(seconds, -MOST_CORRECTION_S), MOST_CORRECTION_S)
