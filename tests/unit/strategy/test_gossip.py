"""Pairs as a piece of a strategy: when they meet, and what does not go with them."""

from typing import Any

import pytest
from coordinator.desk import members, open_round
from runlog.small_log import NODES, STEPS, Clerk, small_recipe

from shoal.base.errors import ShoalError
from shoal.coordinator.events import Archive, StopAsked
from shoal.runlog.entries import Seal, Stopped
from shoal.strategy.merge import Pairs
from shoal.strategy.planning import mixes_pairs
from shoal.strategy.recipe import Recipe

A, B = NODES[:2]


def _recipe(budget: dict[str, Any] | None = None, every: int = 3, **strategy: Any) -> Recipe:
    return small_recipe(
        strategy={
            "preset": "gossip",
            "schedule": {"steps": STEPS},
            "codec": {"kind": "none"},
            "merge": {"kind": "pairs", "global_every": every},
            **strategy,
        },
        budget=budget or {"rounds": 100},
        membership=members(2),
    )


def _sealed(recipe: Recipe, rounds: int, wall_ms: int = 0) -> list[bool]:
    """Which of so many rounds leave the state as it is."""
    clerk = Clerk()
    clerk.found(recipe)
    clerk.join(A, B)
    for _ in range(rounds):
        clerk.plan(A, B)
        body = clerk.seal_body(A, B)
        pairs = mixes_pairs(recipe, clerk.view, body, wall_ms)
        clerk.append(clerk.seal_body(A, B, pairs=pairs))
    return [step.pairs for step in clerk.view.path]


def test_every_third_round_is_everybodys() -> None:
    assert _sealed(_recipe(), 7) == [True, True, False, True, True, False, True]
    assert _sealed(_recipe(every=1), 3) == [False] * 3
    assert _sealed(small_recipe(), 3) == [False] * 3


@pytest.mark.parametrize(
    "budget", [{"rounds": 5}, {"tokens": 5 * 2 * STEPS * 2}, {"tokens": 5 * 2 * STEPS * 2 - 1}]
)
def test_the_last_round_is_everybodys(budget: dict[str, int]) -> None:
    assert _sealed(_recipe(budget), 5) == [True, True, False, True, False]


def test_so_is_the_one_at_whose_seal_the_time_is_up() -> None:
    assert _sealed(_recipe({"seconds": 5.0}), 3, wall_ms=10**9) == [True, False, False]


@pytest.mark.parametrize("value", [0, -1, 1001, True, 2.5])
def test_global_every_is_a_number_of_rounds(value: object) -> None:
    with pytest.raises(ShoalError) as caught:
        _recipe(merge={"kind": "pairs", "global_every": value})
    assert caught.value.code == "SH-RECIPE-02" and "strategy.merge" in caught.value.cause


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ({"codec": {"kind": "int8", "error_feedback": True}}, "count twice"),
        ({"seal": {"kind": "quorum", "staleness": 1}}, "older common state"),
        ({"seal": {"kind": "arrivals"}}, "older common state"),
        ({"schedule": {"fragments": 2, "order": "rotate"}}, "one fragment"),
        ({"schedule": {"steps": 1}, "outer": {"kind": "adam", "lr": 0.1}}, "raw gradients"),
        ({"schedule": {"steps": 1}, "outer": {"kind": "sign", "lr": 0.1}}, "raw gradients"),
        ({"schedule": {"steps": 1}, "outer": {"kind": "onebit-adam", "freeze_after": 1}}, "raw gradients"),
    ],
)
def test_what_does_not_go_with_pairs(strategy: dict[str, Any], why: str) -> None:
    with pytest.raises(ShoalError) as caught:
        _recipe(**strategy)
    assert caught.value.code == "SH-RECIPE-03" and why in caught.value.cause


def test_what_does_go_with_them() -> None:
    for strategy in (
        {"seal": {"kind": "quorum", "staleness": 0}},
        {"schedule": {"steps": 4, "overlap": True, "fragments": 3}},
        {"outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}},
    ):
        assert isinstance(_recipe(**strategy).strategy.merge_rule(), Pairs)


def test_the_coordinator_says_which_seals_are_for_pairs() -> None:
    desk = open_round(A, B, recipe=_recipe())
    for pairs in (True, True, False, True):
        desk.seal_round(A, B)
        seals = [body for body in desk.appended() if isinstance(body, Seal)]
        assert [seal.pairs for seal in seals] == [pairs]
        assert ("pairs meet" in seals[0].reason) == pairs
        assert bool(desk.wanted(Archive)) != pairs, "nobody needs those to fold the log again"
        desk.beat(A, B)
    desk.check()


def test_what_is_there_when_a_run_is_stopped_is_folded() -> None:
    desk = open_round(A, B, recipe=_recipe())
    assert desk.offer(A).kept
    desk.step(StopAsked("enough"))
    seal, stopped = desk.appended()
    assert isinstance(seal, Seal) and not seal.pairs and isinstance(stopped, Stopped)
