"""Batch and rate follow the live members by the recipe's rule, and by nothing else."""

from __future__ import annotations

import pytest
from runlog.small_log import BATCH, NODES, Clerk, small_recipe

from shoal.runlog.entries import Plan
from shoal.strategy.elastic import member_batch, rate_factor
from shoal.strategy.planning import make_plan
from shoal.strategy.recipe import Recipe

LEASES = {"lease_s": 6.0, "heartbeat_s": 1.0, "reconnect_s": 2.0}


def recipe_of(scaling: str) -> Recipe:
    return small_recipe(membership={**LEASES, "scaling": scaling, "usual_nodes": 4})


def plan_of(recipe: Recipe, live: int) -> Plan:
    clerk = Clerk()
    clerk.found(recipe)
    clerk.join(*NODES[:live])
    return make_plan(recipe, clerk.view, [node.node for node in NODES[:live]], "")


def test_without_a_rule_nothing_follows() -> None:
    for live in (1, 4, 100):
        assert member_batch(recipe_of("none"), live) == BATCH
        assert rate_factor(recipe_of("none"), live) == 1.0


@pytest.mark.parametrize(("live", "batch"), [(1, 8), (2, 4), (4, 2), (8, 1), (100, 1)])
def test_batch_keeps_the_whole_fleets_batch_within_bounds(live: int, batch: int) -> None:
    assert BATCH == 2 and member_batch(recipe_of("batch"), live) == batch
    assert rate_factor(recipe_of("batch"), live) == 1.0


@pytest.mark.parametrize(("live", "factor"), [(1, 0.5), (4, 1.0), (16, 1.0)])
def test_rate_follows_the_square_root_and_never_rises(live: int, factor: float) -> None:
    assert rate_factor(recipe_of("rate"), live) == factor
    assert member_batch(recipe_of("rate"), live) == BATCH


def test_plans_say_so() -> None:
    plan = plan_of(recipe_of("batch"), 2)
    assert [item.batch for item in plan.members] == [4, 4] and plan.rate == 1.0
    assert [item.data.count for item in plan.members] == [12, 12]
    assert plan_of(recipe_of("rate"), 1).rate == 0.5
