"""A recipe that is right, changes of it, and what is said to those that are wrong."""

import copy
from typing import Any

import pytest
import yaml

from shoal.base.errors import ShoalError
from shoal.strategy.recipe import Recipe, parse_recipe

GOOD: dict[str, Any] = {
    "name": "a run",
    "seed": 3,
    "model": {"kind": "mlp", "width": 8, "layers": 1},
    "data": {"source": "digits"},
    "inner": {"kind": "adamw", "lr": 0.01, "batch_size": 4},
    "strategy": {"preset": "local-sgd", "schedule": {"steps": 5}},
    "budget": {"rounds": 10},
}


def parsed(values: Any, *overrides: str, **environment: str) -> Recipe:
    return parse_recipe(yaml.safe_dump(values), overrides=overrides, environment=environment)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good recipe with this in this field."""
    values = copy.deepcopy(GOOD)
    at = values
    *keys, last = path.split(".")
    for key in keys:
        at = at.setdefault(key, {})
    at[last] = value
    return values


def refusal(values: Any, *overrides: str, **environment: str) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        parsed(values, *overrides, **environment)
    assert caught.value.next_step
    return caught.value
