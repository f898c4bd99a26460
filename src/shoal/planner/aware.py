"""The aware planner's decision: facts in, shares of the work out, every one with its reason. Pure.

In flows a `Question`: what was measured, what the recipe wants, how far the run is; out flows a `Decision`. Invariant:
the same question has the same answer; everybody who is planned is expected to be done at about the same time, and
nobody is waited for beyond what the others need.

A round is as long as it takes to keep devices training for the share of the time that the recipe asks for, and no
longer, since frequent syncing trains better: near machines sync often, far ones rarely. Within it each device takes
the steps that fit. Where a budget of rounds fixes how much is trained, the sum of steps stays what it would be with
equal work, and devices share it by their speeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.base.ids import NodeId
from shoal.measure.forecast import quantile
from shoal.measure.telemetry import NodeFacts
from shoal.planner.codecs import Choice, Chosen, choose
from shoal.planner.estimates import (
    OVERLAP_SLACK,
    Traffic,
    in_step,
    moving_seconds,
    step_seconds,
    sync_seconds,
    thinning,
)
from shoal.planner.health import Health, Standing, Tier
from shoal.strategy.planning import Share

FIRST_WINDOW_S = 2.0
"""While nobody's speed is known, train for so long: slow devices then show their speed in a step or two."""
OFTENER, RARER = 4, 16
"""How much shorter or longer than the recipe's steps say a round may be."""
MOST_STEPS = 32
"""How many times the recipe's steps one device may take in a round: a lone local model drifts."""
LEAST_BATCH_SHARE = 4
REDUCED_SHARE = 0.5
UPLOAD_SHARE = 0.1
"""Of a round, what sending the own update may take before it is thinned."""
FLAKY = 0.01
"""A line that loses so much, or fails so often, has its update leave once, in coded pieces (`storage.pieces`)."""
WINDOW_SLACK = 1.25
DEADLINE_SLACK, DEADLINE_SPARE_S = 1.5, 1.0
GRACE_SHARE, LEAST_GRACE_S = 0.15, 0.25
ALL_TOLD = 64
"""In a fleet of no more than this everybody's share comes with its reason."""
ROUNDS_AHEAD = 8
"""With a budget of seconds, so many rounds at least are still to come, until it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything a decision depends on."""

    facts: Mapping[NodeId, NodeFacts]
    """Of the nodes that could be planned."""
    health: Mapping[NodeId, Health]
    standings: Mapping[NodeId, Standing]
    corrections: Mapping[NodeId, float]
    names: Mapping[NodeId, str]
    traffic: Traffic
    steps: int
    """What the recipe's schedule says for this round."""
    batch: int
    goal: float
    """The share of their time in which devices should train."""
    overlaps: bool
    fixed_work: bool
    """A budget of rounds fixes how many steps a round has in all."""
    seconds_left: float = math.inf
    longest_s: float = math.inf
    """What the recipe's seal rule has time for."""
    idle_s: float = 0.0
    """Of a round, what devices did not train even where they may train while updates travel, lately."""
    codecs: tuple[Choice, ...] = (Choice(),)
    """The recipe's own, whose bytes `traffic` has, and those that may take its place, ever smaller."""
    last_codec: int = 0
    """Which of them the last round had."""
    rounds_left: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    shares: Mapping[NodeId, Share]
    period_s: float
    """How long the round is expected to be; 0 while nobody's speed is known."""
    deadline_s: float | None
    grace_s: float
    reason: str
    codec: int = 0
    """Which of the recipe's codecs updates are encoded with, but for those of thin uplinks."""
    left_out: Mapping[NodeId, str] = field(default_factory=dict)


def decide(question: Question) -> Decision:
    """Who gets how much."""
    left_out = {
        node: f"until round {question.standings[node].until_round}, {question.health[node].words}"
        for node in question.facts
        if question.standings[node].tier is Tier.EXCLUDED
    }
    if len(left_out) == len(question.facts):
        left_out = {}  # Somebody has to train.
    chosen = {node: fact for node, fact in question.facts.items() if node not in left_out}
    steps_s = step_seconds(chosen, question.batch)
    if not any(steps_s.values()):
        return _first(question, chosen, left_out)
    codec = _codec(question, chosen, steps_s)
    traffic = question.traffic.scaled(question.codecs[codec.number].size)
    syncs = sync_seconds(chosen, traffic, question.corrections)
    period_s, why = _period(question, steps_s, syncs)
    shares = {}
    for node in sorted(chosen):
        shares[node] = _share(question, node, steps_s[node], syncs[node], period_s, codec.number)
    grace_s = max(LEAST_GRACE_S, GRACE_SHARE * period_s)
    return Decision(
        shares=_told(question, shares, codec.number),
        period_s=period_s,
        deadline_s=DEADLINE_SLACK * period_s + DEADLINE_SPARE_S + grace_s,
        grace_s=grace_s,
        reason="; ".join(filter(None, (why, codec.reason, _left_out_words(question, left_out)))),
        codec=codec.number,
        left_out=left_out,
    )


def _first(question: Question, chosen: Mapping[NodeId, NodeFacts], left_out: dict[NodeId, str]) -> Decision:
    """Nobody's speed is known: a short time for everybody shows it."""
    reason = f"nobody's speed is known yet: {question.steps} steps, or what fits into {FIRST_WINDOW_S:g} s"
    share = Share(
        steps=question.steps,
        batch=question.batch,
        spare=question.steps if question.overlaps else 0,
        window_ms=0 if question.fixed_work else int(FIRST_WINDOW_S * 1000),
        reason="speed unknown",
    )
    return Decision(
        shares=dict.fromkeys(sorted(chosen), share),
        period_s=0.0,
        deadline_s=None,
        grace_s=FIRST_WINDOW_S,
        reason=f"{question.steps} steps each" if question.fixed_work else reason,
        left_out=left_out,
    )


def _codec(question: Question, chosen: Mapping[NodeId, NodeFacts], steps_s: Mapping[NodeId, float]) -> Chosen:
    """The round's, by the middle of the fleet, so that bytes do not make rounds longer than the recipe's steps are. For
    a line that is thinner than others' see `_compression`."""
    usual_s = question.steps * quantile([seconds for seconds in steps_s.values() if seconds > 0], 0.5)
    whole_s = quantile(list(moving_seconds(chosen, question.traffic).values()), 0.5)
    room_s = usual_s / OVERLAP_SLACK if question.overlaps else usual_s * (1 - question.goal)
    return choose(question.codecs, whole_s, room_s, _rounds_left(question, usual_s), question.last_codec)


def _rounds_left(question: Question, period_s: float) -> float:
    return min(question.rounds_left, question.seconds_left / period_s)


def _period(
    question: Question, steps_s: Mapping[NodeId, float], syncs: Mapping[NodeId, float]
) -> tuple[float, str]:
    """How long the round is to be, and why."""
    known = [seconds for seconds in steps_s.values() if seconds > 0]
    middle_s, sync_s = quantile(known, 0.5), quantile(list(syncs.values()), 0.5)
    if question.fixed_work:
        rate = sum(1 / seconds for seconds in known) + (len(steps_s) - len(known)) / middle_s
        period_s = question.steps * len(steps_s) / rate
        period_s += 0.0 if question.overlaps else sync_s
        return (
            period_s,
            f"{question.steps * len(steps_s)} steps in all, shared out by speed: {period_s:.1f} s",
        )
    wanted_s, how = _wanted(question, syncs)
    period_s, bound = _bounded(question, wanted_s, middle_s)
    return period_s, f"a round of {period_s:.1f} s{bound}: a step takes {middle_s:.2g} s, {how}"


def _wanted(question: Question, syncs: Mapping[NodeId, float]) -> tuple[float, str]:
    """The shortest round in which devices train for the share of it that was asked for, and what makes it so long.
    Where they train while updates travel, all but `idle_s` of a round, it need be longer than travelling takes."""
    usual, busy = in_step(syncs), f"for {question.goal:.0%} of the time in training"
    if not question.overlaps:
        sync_s = sum(usual.values()) / len(usual)
        return sync_s / (1 - question.goal), f"syncing {sync_s:.2g} s on average, {busy}"
    meanwhile = f"trained meanwhile but for {question.idle_s:.2g} s"
    slowest = max(sorted(usual), key=lambda node: usual[node])
    by_line_s, by_idle_s = OVERLAP_SLACK * usual[slowest], question.idle_s / (1 - question.goal)
    if by_idle_s > by_line_s:
        return by_idle_s, f"{meanwhile}, {busy}"
    which = "the slowest line" if len(usual) == len(syncs) else "the slowest line that sets the pace"
    return by_line_s, f"{which} ({_name(question, slowest)}) syncs in {usual[slowest]:.2g} s, {meanwhile}"


def _bounded(question: Question, wanted_s: float, middle_s: float) -> tuple[float, str]:
    """As much of it as a round may be, and what decided if that is not what was wanted."""
    steps, usual_s = question.steps, question.steps * middle_s
    least_s, least = max(
        (usual_s / OFTENER, f"no less than 1/{OFTENER} of {steps} steps"), (middle_s, "no less than one step")
    )
    ahead_s = max(usual_s, question.seconds_left / ROUNDS_AHEAD)
    left = (
        f"1/{ROUNDS_AHEAD} of the seconds left" if ahead_s > usual_s else f"{steps} steps, as the end is near"
    )
    most_s, most = min(
        (RARER * usual_s, f"no more than {RARER} times {steps} steps"),
        (ahead_s, left),
        (question.longest_s, "all that the seal rule has time for"),
    )
    if wanted_s < least_s or most_s < least_s:
        return least_s, f", {least}"
    return (most_s, f", {most}") if wanted_s > most_s else (wanted_s, "")


def _share(
    question: Question, node: NodeId, step_s: float, sync_s: float, period_s: float, codec: int
) -> Share:
    """One node's, so that its claim comes when the period is over."""
    standing, found = question.standings[node], question.health[node]
    room_s = max(0.0, period_s - (0.0 if question.overlaps else sync_s))
    beyond_s = max(0.0, sync_s - period_s) if question.overlaps else sync_s
    if standing.tier is Tier.REDUCED:
        room_s *= REDUCED_SHARE
    tier = f"{standing.tier}, health {found.score:.2f}"
    if not step_s:
        window_ms = max(1, int(1000 * room_s))
        spare = question.steps if question.overlaps else 0
        reason = f"{tier}: speed unknown, so what fits into {room_s:.1f} s"
        return Share(
            steps=question.steps * OFTENER,
            batch=question.batch,
            spare=spare,
            window_ms=window_ms,
            reason=reason,
            codec=codec,
        )
    batch = question.batch
    if step_s > room_s:
        least = max(1, question.batch // LEAST_BATCH_SHARE)
        batch = max(least, min(batch, int(question.batch * room_s / step_s)))
        step_s = step_s * batch / question.batch
    steps = min(max(1, int(room_s / step_s + 0.5)), MOST_STEPS * question.steps)
    spare = min(2 * steps, math.ceil(1.5 * sync_s / step_s) + 1) if question.overlaps else 0
    own, thin = _compression(question, node, period_s, codec)
    thinner = f", {question.codecs[own].name} for its uplink" if own != codec else ""
    thinner += f", one value in {thin} of the codec's" if thin > 1 else ""
    smaller = f", of {batch} samples instead of {question.batch}" if batch < question.batch else ""
    coded = max(question.facts[node].loss, question.facts[node].failed) >= FLAKY
    pieces = ", a flaky line: in pieces where the recipe has them" if coded else ""
    return Share(
        steps=steps,
        batch=batch,
        spare=spare,
        window_ms=0 if question.fixed_work else max(1, int(1000 * WINDOW_SLACK * steps * step_s)),
        thin=thin,
        expected_ms=int(1000 * (steps * step_s + beyond_s)),
        reason=f"{tier}: {steps} steps of {step_s:.2g} s{smaller}, {sync_s:.2g} s for its line{thinner}{pieces}",
        coded=coded,
        codec=own,
    )


def _compression(question: Question, node: NodeId, period_s: float, codec: int) -> tuple[int, int]:
    """More for those whose uplink would take too much of the round: a smaller codec than the round's, and fewer of
    the values that it would choose."""
    up = question.facts[node].up_bytes_s
    if not up:
        return codec, 1
    whole_s = question.traffic.update_bytes * question.traffic.sent / up
    room_s, rounds = UPLOAD_SHARE * period_s, _rounds_left(question, period_s)
    allowed = [codec, *(n for n, one in enumerate(question.codecs) if n > codec and one.has_turns(rounds))]
    fitting = (number for number in allowed if whole_s * question.codecs[number].size <= room_s)
    own = next(fitting, allowed[-1])
    density = question.codecs[own].density
    if density is None:
        return own, 1
    return own, thinning(whole_s * question.codecs[own].size, room_s, density, rounds)


def _told(question: Question, shares: dict[NodeId, Share], codec: int) -> dict[NodeId, Share]:
    """In a large fleet, only those who are treated specially are told why: a plan goes to everybody."""
    if len(shares) <= ALL_TOLD:
        return shares
    usual = {node for node, share in shares.items() if share.thin == 1 and share.batch == question.batch}
    usual -= {node for node, share in shares.items() if share.codec != codec}
    usual -= {node for node in shares if question.standings[node].tier is Tier.REDUCED}
    return {node: replace(share, reason="") if node in usual else share for node, share in shares.items()}


def _left_out_words(question: Question, left_out: Mapping[NodeId, str]) -> str:
    if not left_out:
        return ""
    told = [f"{_name(question, node)} {why}" for node, why in sorted(left_out.items())[:8]]
    more = f" and {len(left_out) - 8} more" if len(left_out) > 8 else ""
    return f"left out: {', '.join(told)}{more}"


def _name(question: Question, node: NodeId) -> str:
    return question.names.get(node) or node[:8]
