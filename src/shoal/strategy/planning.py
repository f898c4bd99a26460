"""From recipe and log to the next plan: who trains what, and when the run is over. Pure.

In flow the recipe, what the log says and, where they were measured (`shoal.planner`), shares of the work; out flow
plans. Invariant: a plan depends on these and on nothing else. Without shares everybody gets the same work, and the
time that its own speed needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from shoal.base.ids import NodeId
from shoal.runlog.entries import Assignment, Claim, DataRange, Plan, Seal
from shoal.runlog.pairs import pairs_since_fold
from shoal.runlog.rules import MAX_PLAN_TEXT, MAX_TEXT
from shoal.runlog.view import RunView, Totals
from shoal.strategy.digesting import sharding_of
from shoal.strategy.elastic import member_batch, rate_factor
from shoal.strategy.recipe import Recipe
from shoal.strategy.seal_rules import NodePace
from shoal.wire.signed import parse

MOST_LONGER = 16
"""How many times its usual steps a round may have to make a slow link worth its while."""
ROUNDING = 1e-6
"""Shares of a round are sums of fractions."""
GOLDEN = 2654435769
"""The golden section of 2**32: its multiples fall far from their neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How long things take, as the coordinator sees it. 0 while unknown."""

    step_s: float = 0.0
    """One inner step of the slowest member."""
    idle_s: float = 0.0
    """Of a round, what was not training: sending, fetching, folding, waiting."""

    def idle_share(self, steps: int) -> float | None:
        """That as a part of a round of so many steps; None while unknown."""
        known = self.step_s > 0 and self.idle_s > 0
        return self.idle_s / (self.idle_s + steps * self.step_s) if known else None


UNKNOWN = Measured()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one member is given, and why."""

    steps: int
    batch: int
    spare: int = 0
    window_ms: int = 0
    thin: int = 1
    expected_ms: int = 0
    reason: str = ""
    coded: bool = False
    """Its update leaves in coded pieces, where the recipe has `storage.pieces` for those who are planned so."""
    codec: int = 0
    """See `Assignment.codec`."""


def make_plan(
    recipe: Recipe,
    view: RunView,
    nodes: list[NodeId],
    why: str,
    measured: Measured = UNKNOWN,
    *,
    shares: Mapping[NodeId, Share] | None = None,
    deadline_s: float | None = None,
) -> Plan:
    """Work for these nodes, on samples nobody else has: as their shares say, or equal."""
    strategy = recipe.strategy
    rule = strategy.seal_rule()
    live = len({*nodes, *view.planned})
    if shares is None:
        equal, longer = _equal_share(recipe, view, measured, live)
        shares = dict.fromkeys(nodes, equal)
        count_text = f"{len(nodes)} ready node{'s' if len(nodes) != 1 else ''}, equal work"
    else:
        longer, count_text = "", f"{len(nodes)} ready node{'s' if len(nodes) != 1 else ''}"
    steps = max((share.steps for share in shares.values()), default=1)
    sharding = sharding_of(recipe, view, len(nodes), measured.idle_share(steps))
    why = "; ".join(filter(None, (longer, sharding.reason, why)))
    start, members = view.next_counter, []
    for node in nodes:
        share = shares[node]
        pace = NodePace(view.pace.work_ms.get(node, 0.0), view.pace.seal_ms)
        data = DataRange(start, share.batch * (share.steps + share.spare))
        members.append(
            Assignment(
                node=node,
                data=data,
                steps=share.steps,
                batch=share.batch,
                spare=share.spare,
                staleness=rule.staleness(pace),
                window_ms=share.window_ms,
                thin=share.thin,
                expected_ms=share.expected_ms,
                reason=share.reason[:MAX_TEXT],
                coded=share.coded,
                choice=share.codec or msgspec.UNSET,
            )
        )
        start += data.count
    return Plan(
        round=view.round,
        step=int(view.totals.steps + ROUNDING),
        members=tuple(members),
        deadline_ms=int(1000 * min(rule.deadline_s, deadline_s or rule.deadline_s)),
        fragments=planned_fragments(recipe, view),
        reason=(f"{count_text}; {why}" if why else count_text)[:MAX_PLAN_TEXT],
        weights=strategy.weights.kind,
        rate=view.plan.rate if view.plan else outer_rate(recipe, view) * rate_factor(recipe, live),
        folders=sharding.folders,
        shards=sharding.shards,
    )


def _equal_share(recipe: Recipe, view: RunView, measured: Measured, live: int) -> tuple[Share, str]:
    """Everybody's, and why it is longer than the recipe says."""
    schedule = recipe.strategy.schedule
    steps, longer = worthwhile_steps(recipe, local_steps(recipe, view), measured)
    window_ms = int((schedule.seconds or 0) * 1000)
    return Share(
        steps=steps, batch=member_batch(recipe, live), spare=schedule.overlap, window_ms=window_ms
    ), longer


def planned_fragments(recipe: Recipe, view: RunView) -> tuple[int, ...]:
    """All of them, or the one whose turn it is."""
    count = len(view.versions)
    if recipe.strategy.schedule.order == "all":
        return tuple(range(count))
    return (turn_of(view.round, count),)


def turn_of(round_number: int, count: int) -> int:
    """Which of so many fragments a round syncs: each once in `count` rounds, neighbours far apart."""
    order = sorted(range(count), key=lambda index: index * GOLDEN % (1 << 32))
    return order[round_number % count]


def local_steps(recipe: Recipe, view: RunView) -> int:
    """How many steps a node takes for its next update."""
    schedule, totals = recipe.strategy.schedule, view.totals
    if totals.rounds + ROUNDING < schedule.warmup_rounds:
        return 1
    if schedule.steps_last is None:
        return schedule.steps
    done = spent_share(recipe, view)
    if schedule.growth == "linear":
        return round(schedule.steps + (schedule.steps_last - schedule.steps) * done)
    ratio: float = (schedule.steps_last / schedule.steps) ** done
    return round(schedule.steps * ratio)


def worthwhile_steps(recipe: Recipe, steps: int, measured: Measured) -> tuple[int, str]:
    """At least these steps, and as many as keep the time that is not training within `schedule.hide` of a round; and
    why, if they are more. A budget of rounds fixes how many steps there are, so that they stay as they are."""
    hide, known = recipe.strategy.schedule.hide, measured.step_s > 0 and measured.idle_s > 0
    if hide is None or recipe.budget.rounds is not None or not known:
        return steps, ""
    wanted = math.ceil(measured.idle_s * (1 - hide) / (hide * measured.step_s))
    if wanted <= steps:
        return steps, ""
    chosen = min(wanted, steps * MOST_LONGER)
    return (
        chosen,
        f"{chosen} steps instead of {steps}, since {measured.idle_s:.1f} s of a round are not training",
    )


def outer_rate(recipe: Recipe, view: RunView) -> float:
    """The factor on the outer rate in the next round: an even rise, then down to `floor` as the budget is spent."""
    outer, rounds = recipe.strategy.outer, view.totals.rounds + ROUNDING
    if rounds < outer.warmup_rounds:
        return (int(rounds) + 1) / outer.warmup_rounds
    if outer.decay == "none":
        return 1.0
    spent = spent_share(recipe, view)
    risen = spent * outer.warmup_rounds / rounds  # What was spent when the rise was over.
    progress = min(1.0, (spent - risen) / (1 - risen)) if risen < 1 else 1.0
    left = 0.5 * (1 + math.cos(math.pi * progress)) if outer.decay == "cosine" else 1 - progress
    return outer.floor + (1 - outer.floor) * left


def spent_share(recipe: Recipe, view: RunView) -> float:
    """How much of its budget of rounds or tokens the run has used, 0 to 1."""
    budget, totals = recipe.budget, view.totals
    shares = [totals.rounds / budget.rounds] if budget.rounds else []
    shares += [totals.tokens / budget.tokens] if budget.tokens else []
    return min(1.0, max(shares, default=0.0))


def mixes_pairs(recipe: Recipe, view: RunView, seal: Seal, wall_ms: int) -> bool:
    """Whether this seal of the open round should leave the state as it is, for its nodes to meet in pairs: it is not
    yet time for everybody's round again, and the run goes on after it."""
    if pairs_since_fold(view.path) + 1 >= recipe.strategy.merge_rule().global_every:
        return False
    claims = [parse(item.claim.payload, Claim) for item in seal.accepted]
    before = view.totals
    totals = Totals(
        rounds=before.rounds + 1,
        steps=before.steps,
        tokens=before.tokens + sum(claim.tokens for claim in claims if claim is not None),
    )
    return budget_spent(recipe, view, wall_ms, totals) is None


def budget_spent(recipe: Recipe, view: RunView, wall_ms: int, totals: Totals | None = None) -> str | None:
    """Why the run is over (or would be, with these totals), or None."""
    budget, totals = recipe.budget, totals or view.totals
    if budget.rounds is not None and totals.rounds + ROUNDING >= budget.rounds:
        return f"{round(totals.rounds)} rounds done"
    if budget.tokens is not None and totals.tokens >= budget.tokens:
        return f"{totals.tokens} tokens done"
    if budget.seconds is not None and view.path and view.began_ms:
        seconds = (wall_ms - view.began_ms) / 1000
        if seconds >= budget.seconds:
            return f"{seconds:.0f} seconds done"
    return None
