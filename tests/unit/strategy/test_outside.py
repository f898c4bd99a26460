"""Algorithms whose outer optimiser takes the real step: what goes with what, and the course of its rate."""

import math
from typing import Any

import pytest
from runlog.small_log import NODES, Clerk, small_recipe

from shoal.base.errors import ShoalError
from shoal.codec import CODECS, UNEQUAL_CODECS
from shoal.replica.fold import RESIDUAL
from shoal.runlog.entries import Rewind
from shoal.strategy.planning import make_plan, outer_rate
from shoal.strategy.recipe import Recipe, recipe_from
from shoal.training.schedule import rate_factor
from shoal.training.spec import AdamWSpec, SgdSpec

A, B = NODES[:2]
OUTSIDE = ("ddp-adam", "onebit-adam", "demo")


def _recipe(preset: str, **changes: Any) -> Recipe:
    """`changes` are sections; those of the strategy go over the preset."""
    strategy = {"preset": preset, **changes.pop("strategy", {})}
    values = {"model": {"kind": "gpt"}, "data": {"source": "stdlib"}, "budget": {"rounds": 1000}}
    return recipe_from({**values, "strategy": strategy, **changes})


def _refused(preset: str, **changes: Any) -> str:
    with pytest.raises(ShoalError) as caught:
        _recipe(preset, **changes)
    assert caught.value.code == "SH-RECIPE-03", caught.value
    return caught.value.cause


@pytest.mark.parametrize("preset", OUTSIDE)
def test_nodes_send_gradients(preset: str) -> None:
    recipe = _recipe(preset, inner={"batch_size": 4, "clip": None})
    assert isinstance(recipe.inner, SgdSpec) and (recipe.inner.lr, recipe.inner.momentum) == (1.0, 0.0)
    assert recipe.inner.batch_size == 4 and recipe.strategy.schedule.steps == 1
    assert small_recipe(strategy={"preset": preset}).inner.kind == "own", (
        "a program of one's own may do so too"
    )


@pytest.mark.parametrize("preset", OUTSIDE)
@pytest.mark.parametrize(
    "inner",
    [
        {"kind": "adamw"},
        {"kind": "muon"},
        {"lr": 0.5},
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"warmup_steps": 5},
        {"schedule": "cosine", "total_steps": 100},
    ],
)
def test_another_inner_step_than_the_gradient_is_refused(preset: str, inner: dict[str, Any]) -> None:
    assert "has to be sent a gradient: use inner {kind: sgd, lr: 1.0}" in _refused(preset, inner=inner)


@pytest.mark.parametrize("preset", ["onebit-adam", "demo"])
@pytest.mark.parametrize("schedule", [{"steps": 2}, {"steps_last": 8}, {"overlap": 1}])
def test_several_steps_a_round_are_refused(preset: str, schedule: dict[str, Any]) -> None:
    strategy = {"schedule": schedule, "merge": {"kind": "add-delta"}}
    assert "schedule.steps to 1" in _refused(preset, strategy=strategy)


def test_an_adam_over_many_local_steps_takes_those_of_any_optimiser() -> None:
    strategy = {"outer": {"kind": "adam", "lr": 1e-3}}
    assert _recipe("local-sgd", inner={"kind": "adamw"}, strategy=strategy).strategy.outer.kind == "adam"


@pytest.mark.parametrize("kind", ["adam", "onebit-adam"])
def test_a_variance_is_not_learnt_from_what_a_codec_made(kind: str) -> None:
    outer = {"kind": kind, "freeze_after": 20}
    for codec in ({"warmup_rounds": 0}, {"warmup_rounds": 19}):
        said = _refused("onebit-adam", strategy={"outer": outer, "codec": codec})
        assert f"in 20 first rounds, of which {codec['warmup_rounds']}" in said
        assert "codec.warmup_rounds to 20" in said
    assert _recipe("onebit-adam", strategy={"outer": outer, "codec": {"warmup_rounds": 20}})
    assert _recipe("onebit-adam", strategy={"outer": outer, "codec": {"kind": "none"}})
    turns = {"order": "rotate", "fragments": 3}
    strategy = {"outer": outer, "codec": {"warmup_rounds": 59}, "schedule": turns}
    assert "codec.warmup_rounds to 60" in _refused("onebit-adam", strategy=strategy)


@pytest.mark.parametrize("seal", [{"kind": "quorum", "staleness": 1}, {"kind": "arrivals"}])
def test_a_momentum_must_come_in_time(seal: dict[str, Any]) -> None:
    assert "an old momentum" in _refused("onebit-adam", strategy={"seal": seal})
    assert _recipe("onebit-adam", strategy={"seal": {"kind": "quorum", "staleness": 0}})


@pytest.mark.parametrize("kind", sorted(CODECS))
def test_a_digest_is_any_codec_with_the_same_bytes_everywhere(kind: str) -> None:
    if kind in UNEQUAL_CODECS:
        with pytest.raises(ShoalError, match=r"SH-RECIPE-02.*strategy\.digest\.kind.*another machine"):
            _recipe("diloco", inner={"kind": "adamw"}, strategy={"digest": {"kind": kind}})
        return
    rules = _recipe(
        "diloco", inner={"kind": "adamw"}, strategy={"digest": {"kind": kind}}
    ).strategy.fold_rules()
    assert rules.slots == ("momentum", RESIDUAL) and rules.digest is not None


def test_a_digest_may_be_left_out() -> None:
    rules = _recipe("onebit-adam", strategy={"digest": None}).strategy.fold_rules()
    assert rules.digest is None and rules.slots == ("momentum", "variance")


@pytest.mark.parametrize("preset", OUTSIDE)
def test_a_decay_needs_an_end_that_the_log_knows(preset: str) -> None:
    assert "outer.decay needs budget.rounds or budget.tokens" in _refused(preset, budget={"seconds": 60})
    assert _recipe(preset, budget={"seconds": 60}, strategy={"outer": {"decay": "none"}})
    assert _recipe(preset, budget={"seconds": 60, "tokens": 10**6})


# --- the course of the rate --------------------------------------------------------------------------------


def _clerk(rounds: int) -> Clerk:
    clerk = Clerk()
    clerk.found()
    clerk.join(A, B)
    for _ in range(rounds):
        clerk.plan(A, B)
        clerk.seal(A, B)
    return clerk


def _scheduled(budget: dict[str, int], **outer: Any) -> Recipe:
    strategy = {"preset": "local-sgd", "schedule": {"steps": 3}, "outer": {"kind": "sgd", **outer}}
    return small_recipe(strategy=strategy, budget=budget)


@pytest.mark.parametrize("decay", ["cosine", "linear"])
@pytest.mark.parametrize("budget", [{"rounds": 20}, {"tokens": 20 * 12}])
def test_the_outer_rate_goes_the_way_of_an_inner_one(decay: Any, budget: dict[str, int]) -> None:
    recipe = _scheduled(budget, warmup_rounds=4, decay=decay, floor=0.2)
    inner = AdamWSpec(warmup_steps=4, schedule=decay, total_steps=20, floor=0.2)
    clerk = _clerk(0)
    for number in range(20):
        plan = make_plan(recipe, clerk.view, [A.node, B.node], "")
        assert plan.rate == pytest.approx(rate_factor(inner, number), rel=1e-5)
        clerk.append(plan)
        clerk.seal(A, B)
    assert outer_rate(recipe, clerk.view) == pytest.approx(0.2)


def test_without_a_schedule_the_rate_is_one() -> None:
    assert {outer_rate(_scheduled({"rounds": 5}), _clerk(rounds).view) for rounds in range(7)} == {1.0}
    warm = _scheduled({"rounds": 5}, warmup_rounds=2)
    assert [outer_rate(warm, _clerk(rounds).view) for rounds in range(4)] == [0.5, 1.0, 1.0, 1.0]


def test_every_rate_of_a_run_may_stand_in_its_log() -> None:
    """Also beyond the budget, and where the warm-up is longer than it."""
    for warm_up in (0, 1, 6, 50):
        recipe = _scheduled({"rounds": 5}, warmup_rounds=warm_up, decay="cosine", floor=1e-9)
        for rounds in range(8):
            rate = outer_rate(recipe, _clerk(rounds).view)
            assert math.isfinite(rate) and 0 < rate <= 1


def test_a_round_that_is_planned_again_keeps_its_rate_and_a_rewound_one_its_place() -> None:
    recipe, clerk = _scheduled({"rounds": 8}, decay="linear"), _clerk(2)
    early = clerk.view.path[0].position
    clerk.append(clerk.plan_body(A, rate=0.123))
    assert make_plan(recipe, clerk.view, [B.node], "again").rate == 0.123
    clerk.append(Rewind(to=early, reason="asked"))
    assert (
        outer_rate(recipe, clerk.view)
        == outer_rate(recipe, _clerk(1).view)
        > outer_rate(recipe, _clerk(2).view)
    )
