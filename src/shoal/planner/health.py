"""How well a node is doing, in one number, and what it is given for it.

In flow facts of all nodes and the recipe's weights; out flow scores and tiers, in words. Invariant: pure; a node that
is excluded is excluded for a number of rounds that is known when it happens, and then tried again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from shoal.base.ids import NodeId
from shoal.measure.telemetry import NodeFacts

PRIORITY, NORMAL, REDUCED = 0.75, 0.4, 0.25
"""The least score of each tier."""
STEADY = 0.03
"""A score this close to a tier's border leaves a node in the tier that it is in."""
FIRST_REST, LONGEST_REST = 2, 32
"""For how many rounds a node is left out the first time, and at most: twice as many each time."""
TOLERABLE_LOSS = 0.05
"""A line that loses so much counts for nothing."""
HALF_RTT_S = 0.5
"""A round trip that makes a line worth half."""


class Tier(StrEnum):
    PRIORITY = "priority"
    NORMAL = "normal"
    REDUCED = "reduced"
    EXCLUDED = "excluded"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthWeights:
    """What each part of the score counts for; see `strategy.pieces.Planner`."""

    speed: float = 0.4
    network: float = 0.3
    quality: float = 0.2
    uptime: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    node: NodeId
    score: float
    speed: float
    network: float
    quality: float
    uptime: float

    @property
    def words(self) -> str:
        weakest = min(("speed", "network", "quality", "uptime"), key=lambda part: float(getattr(self, part)))
        return f"health {self.score:.2f}, {weakest} {float(getattr(self, weakest)):.2f} the least"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A node's tier, and its way back if it is excluded."""

    tier: Tier = Tier.NORMAL
    until_round: int = 0
    """While it is excluded: the round in which it is tried again."""
    exclusions: int = 0


def health(facts: Mapping[NodeId, NodeFacts], weights: HealthWeights) -> dict[NodeId, Health]:
    """Everybody's. Speed is against the middle of the fleet: half there, 1 at four times its speed."""
    rates = sorted(fact.batch / fact.step_s for fact in facts.values() if fact.step_s > 0 and fact.batch > 0)
    middle = rates[len(rates) // 2] if rates else 0.0
    whole = weights.speed + weights.network + weights.quality + weights.uptime
    found = {}
    for node, fact in sorted(facts.items()):
        speed, network = _speed(fact, middle), _network(fact)
        total = weights.speed * speed + weights.network * network
        total += weights.quality * fact.quality + weights.uptime * fact.uptime
        found[node] = Health(
            node=node,
            score=total / whole,
            speed=speed,
            network=network,
            quality=fact.quality,
            uptime=fact.uptime,
        )
    return found


def _speed(fact: NodeFacts, middle: float) -> float:
    if not middle or not fact.step_s or not fact.batch:
        return 0.5
    return min(1.0, max(0.0, 0.5 + 0.25 * math.log2(fact.batch / fact.step_s / middle)))


def _network(fact: NodeFacts) -> float:
    """Reliable and near: losses, failed requests, work that came late, and the round trip with its jitter."""
    lossless = max(0.0, 1 - fact.loss / TOLERABLE_LOSS)
    near = HALF_RTT_S / (HALF_RTT_S + fact.rtt_s + 2 * fact.jitter_s)
    return (0.5 + 0.5 * lossless) * (1 - fact.failed) * fact.delivered * near


def stand(before: Standing, found: Health, round_number: int) -> Standing:
    """The tier for the next round. A node whose rest is over is tried again with reduced work."""
    if before.tier is Tier.EXCLUDED:
        if round_number < before.until_round:
            return before
        return replace(before, tier=Tier.REDUCED)
    tier = _tier(found.score, before.tier)
    if tier is Tier.EXCLUDED:
        rest = min(LONGEST_REST, FIRST_REST << min(before.exclusions, 8))
        return Standing(tier=tier, until_round=round_number + rest, exclusions=before.exclusions + 1)
    forgiven = max(0, before.exclusions - 1) if tier in (Tier.NORMAL, Tier.PRIORITY) else before.exclusions
    return replace(before, tier=tier, exclusions=forgiven)


def _tier(score: float, before: Tier) -> Tier:
    borders = ((Tier.PRIORITY, PRIORITY), (Tier.NORMAL, NORMAL), (Tier.REDUCED, REDUCED))
    order = [tier for tier, _ in borders] + [Tier.EXCLUDED]
    for tier, least in borders:
        better = order.index(before) > order.index(tier)
        if score >= least + (STEADY if better else -STEADY):
            return tier
    return Tier.EXCLUDED
