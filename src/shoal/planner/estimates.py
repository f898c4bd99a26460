"""How long things will take: a model of a round, made of what was measured.

In flow facts of nodes and sizes; out flow seconds. Invariant: pure; what is unknown is 0 or the middle of what is known
of others, and never makes a node look better than the middle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal.base.ids import NodeId
from shoal.measure.forecast import quantile
from shoal.measure.telemetry import NodeFacts

ROUND_TRIPS = 6
"""Of a round: the entry comes, updates are asked for, the own one is announced, sent and vouched for, and claimed."""
LEAST_OF_MODEL = 0.5
MOST_THIN = 8
TURNS = 4.0
"""Of rounds times density: much less, and some values never travel."""
OVERLAP_SLACK = 1.5
"""Where devices train while updates travel, a round is so many times as long as travelling takes, at least."""
FIXED_S = 0.05
"""What a round takes beside training and the network: folding, hashing, writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a round moves."""

    update_bytes: float
    """Of one update, as it was last; 0 while unknown."""
    sent: int = 1
    """How often a node sends its own."""
    received: int = 0
    """How many of others' it takes in."""

    def scaled(self, by: float) -> Traffic:
        """The same of larger or smaller updates."""
        return replace(self, update_bytes=self.update_bytes * by)


def step_seconds(facts: Mapping[NodeId, NodeFacts], batch: int) -> dict[NodeId, float]:
    """What a step of so many samples takes each; 0 for those of whom nothing is known."""
    return {
        node: fact.step_s * batch / fact.batch if fact.step_s > 0 and fact.batch > 0 else 0.0
        for node, fact in facts.items()
    }


def moving_seconds(facts: Mapping[NodeId, NodeFacts], traffic: Traffic) -> dict[NodeId, float]:
    """How long a round's bytes travel, for each: sent and received by its own line, or the middle of others'."""
    ups = [fact.up_bytes_s for fact in facts.values() if fact.up_bytes_s > 0]
    downs = [fact.down_bytes_s for fact in facts.values() if fact.down_bytes_s > 0]
    usual_up, usual_down = quantile(ups, 0.5), quantile(downs, 0.5)
    found = {}
    for node, fact in facts.items():
        up, down = fact.up_bytes_s or usual_up, fact.down_bytes_s or usual_down
        moving_s = traffic.update_bytes * traffic.sent / up if up else 0.0
        found[node] = moving_s + (traffic.update_bytes * traffic.received / down if down else 0.0)
    return found


def sync_seconds(
    facts: Mapping[NodeId, NodeFacts], traffic: Traffic, corrections: Mapping[NodeId, float]
) -> dict[NodeId, float]:
    """What of a round is not training, for each: by the model of its line, and what that was off by before. (What a
    node waits for is often others' lines, which its own says nothing about: hence seconds, and not a factor.)"""
    found = {}
    for node, moving_s in moving_seconds(facts, traffic).items():
        fact = facts[node]
        line_s = FIXED_S + ROUND_TRIPS * (fact.rtt_s + fact.jitter_s) + moving_s
        found[node] = max(LEAST_OF_MODEL * line_s, line_s + corrections.get(node, 0.0))
    return found


def thinning(moving_s: float, room_s: float, density: float, rounds_left: float) -> int:
    """By how much an update should be thinned, 1 to 8, for its bytes to take no longer than there is room for; no
    further than leaves every value its turn in the rounds that are left."""
    thin = 1
    while thin < MOST_THIN and moving_s / thin > room_s and rounds_left * density / (2 * thin) >= TURNS:
        thin *= 2
    return thin


def in_step(syncs: Mapping[NodeId, float]) -> dict[NodeId, float]:
    """Those whose lines set the pace: not those whose lines are far slower than the others'."""
    most_s = 3 * quantile(list(syncs.values()), 0.5) + 1.0
    return {node: sync_s for node, sync_s in syncs.items() if sync_s <= most_s}
