"""Questions to the planner, for its tests: fleets as facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shoal.base.ids import NodeId
from shoal.measure.telemetry import NodeFacts
from shoal.planner.aware import Question
from shoal.planner.estimates import Traffic
from shoal.planner.health import HealthWeights, Standing, health


def node(number: int) -> NodeId:
    return NodeId(f"{number:064x}")


def fact(number: int, **values: Any) -> NodeFacts:
    """A good node: five steps a second, 50 ms away, 100 Mbit/s."""
    usual = NodeFacts(
        node=node(number), step_s=0.2, batch=8, rtt_s=0.05, up_bytes_s=12.5e6, down_bytes_s=12.5e6
    )
    return replace(usual, **values)


def question(*facts: NodeFacts, **values: Any) -> Question:
    by_node = {one.node: one for one in facts}
    settings: dict[str, Any] = {
        "facts": by_node,
        "health": health(by_node, HealthWeights()),
        "standings": {one: Standing() for one in by_node},
        "corrections": {},
        "names": {one: f"n{place}" for place, one in enumerate(sorted(by_node))},
        "traffic": Traffic(update_bytes=150_000, received=len(facts) - 1),
        "steps": 30,
        "batch": 8,
        "goal": 0.95,
        "overlaps": False,
        "fixed_work": False,
    }
    return Question(**{**settings, **values})
