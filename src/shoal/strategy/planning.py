"""From recipe and log to the next plan: who trains what, and when the run is over. Pure.

Later planners measure links and speeds; this one gives everybody the same.
"""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.runlog.entries import Assignment, DataRange, Plan
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe


def make_plan(recipe: Recipe, view: RunView, ready: list[NodeId], deadline_s: float, why: str) -> Plan:
    """Equal work for every ready node, on samples nobody else has."""
    schedule, batch = recipe.strategy.schedule, recipe.inner.batch_size
    spare = schedule.steps if schedule.overlap else 0
    start = view.next_counter
    members = []
    for node in ready:
        count = batch * (schedule.steps + spare)
        data = DataRange(start, count)
        members.append(Assignment(node=node, data=data, steps=schedule.steps, batch=batch, spare=spare))
        start += count
    count_text = f"{len(ready)} ready node{'s' if len(ready) != 1 else ''}, equal work"
    return Plan(
        round=view.round,
        step=view.steps_done * schedule.steps,
        members=tuple(members),
        deadline_ms=int(deadline_s * 1000),
        fragments=tuple(range(len(view.versions))),
        reason=f"{count_text}; {why}" if why else count_text,
    )


def budget_spent(recipe: Recipe, view: RunView, wall_ms: int) -> str | None:
    """Why the run is over, or None."""
    budget = recipe.budget
    if budget.rounds is not None and view.steps_done >= budget.rounds:
        return f"{view.steps_done} rounds done"
    if budget.tokens is not None:
        tokens = sum(update.claim.tokens for step in view.path for update in step.updates)
        if tokens >= budget.tokens:
            return f"{tokens} tokens done"
    if budget.seconds is not None and view.path and view.began_ms:
        seconds = (wall_ms - view.began_ms) / 1000
        if seconds >= budget.seconds:
            return f"{seconds:.0f} seconds done"
    return None
