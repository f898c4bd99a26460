"""Whatever stands in a recipe, the answer is a recipe that can be logged, or an error with a code."""

import copy
import json
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.base.errors import ShoalError
from shoal.strategy.recipe import Recipe, parse_recipe, recipe_in_log

from .modest import many

GOOD: dict[str, Any] = {
    "name": "a run",
    "seed": 3,
    "model": {"kind": "mlp", "width": 8, "layers": 1},
    "data": {"source": "digits"},
    "inner": {"kind": "adamw", "lr": 0.01, "batch_size": 4, "betas": [0.9, 0.95]},
    "strategy": {
        "preset": "diloco",
        "schedule": {"steps": 5, "overlap": False, "fragments": 2},
        "codec": {"kind": "int8", "block": 64, "error_feedback": True},
        "seal": {"kind": "all-or-deadline", "deadline_s": 5},
        "aggregate": {"kind": "mean"},
        "outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.9},
        "merge": {"kind": "replace"},
    },
    "budget": {"rounds": 10, "seconds": 100.5},
    "membership": {"min_nodes": 1, "lease_s": 15, "heartbeat_s": 2, "reconnect_s": 3},
    "storage": {"receipts": 1, "snapshot_every": 5, "quota_bytes": 1000},
    "evaluation": {"every": 1, "batches": 4},
}


def _paths(values: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in values.items():
        found.append((*above, key))
        if isinstance(value, dict):
            found += _paths(value, (*above, key))
    return found


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["none", "fp16", "int8", "sgd", "nesterov", "mix", "replace", "mean", "ddp", "cnn", "gpt"]
    ),
    st.dates(),
    st.binary(max_size=3),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3)
    ),
    max_leaves=5,
)


@many
@given(st.lists(st.tuples(st.sampled_from(_paths(GOOD)), ANYTHING), min_size=1, max_size=3))
@example([(("strategy", "preset"), [])])
@example([(("strategy", "outer", "lr"), "fast")])
@example([(("strategy", "outer", "lr"), 1e300)])
@example([(("strategy", "seal", "deadline_s"), float("inf"))])
@example([(("membership", "lease_s"), float("inf"))])
@example([(("strategy", "codec", "block"), 64.0)])
def test_any_value_anywhere(changes: list[tuple[tuple[str, ...], Any]]) -> None:
    values = copy.deepcopy(GOOD)
    for path, value in changes:
        at: Any = values
        for key in path[:-1]:
            at = at.get(key) if isinstance(at, dict) else None
        if isinstance(at, dict):
            at[path[-1]] = value
    try:
        recipe = parse_recipe(yaml.safe_dump(values), environment={})
    except ShoalError as error:
        assert error.code in ("SH-RECIPE-01", "SH-RECIPE-02", "SH-RECIPE-03")
    else:
        _can_be_run(recipe)


def _can_be_run(recipe: Recipe) -> None:
    text = recipe.model_dump_json()
    json.loads(text)
    assert recipe_in_log(text) == recipe, "what was founded is what every node reads"
    assert int(recipe.strategy.seal_rule().deadline_s * 1000) >= 0
    recipe.strategy.fold_rules()


@many
@given(st.text(max_size=60))
@example("name: 2026-13-45")
@example("[" * 2000)
def test_any_text(text: str) -> None:
    try:
        parse_recipe(text, environment={})
    except ShoalError as error:
        assert error.code.startswith("SH-RECIPE-0")


@many
@given(st.text(max_size=20), st.sampled_from([".".join(path) for path in _paths(GOOD)]))
def test_any_setting(value: str, path: str) -> None:
    try:
        _can_be_run(parse_recipe(json.dumps(GOOD), overrides=[f"{path}={value}", value], environment={}))
    except ShoalError as error:
        assert error.code.startswith("SH-RECIPE-0")
