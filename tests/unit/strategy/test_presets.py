"""Presets: every row loads, and what a recipe says itself goes first."""

from typing import Any

import pytest

from shoal.strategy.presets import DEFAULT, PRESETS
from shoal.strategy.recipe import Recipe, recipe_from
from shoal.training.spec import AdamWSpec, MuonSpec


def _recipe(preset: str | None, inner: dict[str, Any] | None, rounds: int = 100) -> Recipe:
    values: dict[str, Any] = {
        "model": {"kind": "gpt"},
        "data": {"source": "stdlib"},
        "strategy": {"preset": preset} if preset else {},
        "budget": {"rounds": rounds},
    }
    return recipe_from({**values, "inner": inner} if inner is not None else values)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_loads_and_says_its_name(preset: str) -> None:
    made_for = PRESETS[preset].get("inner")
    assert _recipe(preset, None if made_for else {"kind": "adamw"}).strategy.preset == preset


def test_the_default_brings_its_own_optimiser() -> None:
    recipe = _recipe(None, None)
    assert recipe.strategy.preset == DEFAULT and isinstance(recipe.inner, MuonSpec)
    assert recipe.inner.momentum == PRESETS[DEFAULT]["inner"]["momentum"]


def test_what_the_recipe_says_of_the_optimiser_goes_first() -> None:
    own = _recipe("auto", {"kind": "muon", "momentum": 0.9}).inner
    assert isinstance(own, MuonSpec) and own.momentum == 0.9
    rest = _recipe("auto", {"batch_size": 3}).inner
    assert isinstance(rest, MuonSpec) and rest.batch_size == 3
    assert rest.momentum == PRESETS["auto"]["inner"]["momentum"]


@pytest.mark.parametrize(
    ("inner", "split", "steps"), [(None, 1, 10), ({"batch_size": 15}, 1, 10), ({"batch_size": 16}, 2, 3)]
)
def test_only_large_batches_are_split_and_meet_often(
    inner: dict[str, object] | None, split: int, steps: int
) -> None:
    found = _recipe("auto", inner)
    assert isinstance(found.inner, MuonSpec) and found.inner.split == split
    assert found.strategy.schedule.steps == steps


def test_a_schedule_that_ends_rises_first_for_as_long_as_the_preset_needs() -> None:
    ends = {"schedule": "cosine", "total_steps": 1200, "batch_size": 16}
    assert _recipe("auto", ends).inner.warmup_steps == 200
    assert _recipe("auto", {**ends, "warmup_steps": 7}).inner.warmup_steps == 7
    assert _recipe("auto", {**ends, "kind": "adamw"}).inner.warmup_steps == 0
    assert _recipe("auto", {"batch_size": 16}).inner.warmup_steps == 0
    assert _recipe("auto", {**ends, "batch_size": 15}).inner.warmup_steps == 0


def test_another_optimiser_gets_none_of_the_presets_values() -> None:
    assert _recipe("auto", {"kind": "adamw"}).inner == AdamWSpec()


def test_what_is_left_out_needs_rounds_to_come_later() -> None:
    for inner, rounds in ((None, 100), ({"batch_size": 16}, 120)):
        assert _recipe("auto", inner, rounds=rounds - 1).strategy.codec.kind == "two-bit"
        assert _recipe("auto", inner, rounds=rounds).strategy.codec.kind == "ternary"
