"""What is attacked: a small model, its data, its codec and its fleet, as a recipe.

In flows what was asked for; out flows a frozen `Setting`. Invariant: a run under attack and its attack-free run have
the same setting but for the aggregator and who attacks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import yaml

from shoal.adversary import Backdoor, find_attack
from shoal.aggregate import AGGREGATORS
from shoal.base.errors import ShoalError
from shoal.strategy.recipe import Recipe, parse_recipe

DEFAULT_RULE = "robust"
"""What `--aggregator default` means: the rule that `docs/strangers.md` recommends."""

CODECS: dict[str, dict[str, Any]] = {
    "none": {"kind": "none"},
    "int8": {"kind": "int8", "error_feedback": True},
    "two-bit": {"kind": "two-bit", "error_feedback": True},
    "sparse": {"kind": "chunked-top-k", "error_feedback": True, "feedback_decay": 0.95},
}
"""By name: block int8, dense 2 bits, and a 32nd of the values at 2 bits, all with error feedback."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {
        "model": {"kind": "mlp", "width": 64, "layers": 1},
        # Half of the samples judge, and weights decay much: a run then ends where the next one ends, to a hundredth.
        "data": {"source": "digits", "validation_fraction": 0.5},
        "inner": {"kind": "adamw", "lr": 0.006, "weight_decay": 1.0, "batch_size": 32},
        "steps": 10,
        "rounds": 40,
    },
    "gpt": {
        "model": {"kind": "gpt", "layers": 2, "width": 48, "heads": 4, "mlp": "gelu"},
        "data": {"source": "stdlib", "context": 32, "max_bytes": 2_000_000},
        "inner": {"kind": "adamw", "lr": 0.003, "batch_size": 8},
        "steps": 10,
        "rounds": 20,
    },
}
MODELS = tuple(_SETTINGS)
_WARM_UP_SHARE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of the matrix, as a person asks for it."""

    attack: str
    aggregator: str = "default"
    """`default`, or a rule's kind and its parameters: `trimmed-mean f=0.2 nnm=true`."""
    fraction: float = 0.2
    nodes: int = 10
    codec: str = "int8"
    model: str = "digits"
    seed: int = 0
    rounds: int | None = None

    @property
    def attackers(self) -> int:
        return int(self.fraction * self.nodes + 1e-9)


def check_cell(cell: Cell) -> None:
    """Raise SH-ATTACK-01 or SH-RECIPE-02 for what there is not."""
    if isinstance(find_attack(cell.attack)(), Backdoor) and cell.model != "digits":
        raise ShoalError("SH-ATTACK-01", "a backdoor is a mark in an image", "use --model digits")
    _check_names(cell)
    if not 0 <= cell.fraction <= 1:
        raise ShoalError(
            "SH-RECIPE-02", f"--fraction: found {cell.fraction:g}", "allowed: a share from 0 to below 1"
        )
    if cell.attackers >= cell.nodes:
        raise ShoalError(
            "SH-RECIPE-02",
            f"--fraction {cell.fraction:g} of --nodes {cell.nodes} leaves no honest node",
            "use a fraction below 1",
        )


def _check_names(cell: Cell) -> None:
    for option, found, allowed in (("--codec", cell.codec, CODECS), ("--model", cell.model, MODELS)):
        if found not in allowed:
            raise ShoalError("SH-RECIPE-02", f"{option}: found {found!r}", f"allowed: {', '.join(allowed)}")


def rule_of(text: str) -> dict[str, Any]:
    """An aggregator's section from a command line. Raises SH-RECIPE-02."""
    kind, *settings = text.replace(",", " ").split() or [""]
    section: dict[str, Any] = {"kind": DEFAULT_RULE if kind == "default" else kind}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ShoalError(
                "SH-RECIPE-02", f"--aggregator: {setting!r} is not of the form name=value", "e.g. krum f=0.2"
            )
        section[name] = _plain(name, value)
    if section["kind"] not in AGGREGATORS:
        known = ", ".join(sorted(AGGREGATORS))
        raise ShoalError("SH-RECIPE-02", f"--aggregator: found {kind!r}", f"allowed: default, {known}")
    return section


def _plain(name: str, text: str) -> str | float | bool | None:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        value = ...
    if not isinstance(value, str | int | float | bool | None):
        raise ShoalError(
            "SH-RECIPE-02", f"--aggregator: {name} is no plain value: {text!r}", "e.g. krum f=0.2"
        )
    return value


def recipe_for(cell: Cell, rule: dict[str, Any]) -> Recipe:
    """The whole run but for its attackers. Raises SH-RECIPE-02 or -03."""
    _check_names(cell)
    chosen = _SETTINGS[cell.model]
    rounds = cell.rounds or chosen["rounds"]
    steps = rounds * chosen["steps"]
    values = {
        "name": f"attacks on {cell.model}",
        "seed": cell.seed,
        "model": chosen["model"],
        "data": chosen["data"],
        "inner": {
            **chosen["inner"],
            "schedule": "cosine",
            "total_steps": steps,
            "warmup_steps": max(1, steps // _WARM_UP_SHARE),
        },
        "strategy": {
            "preset": "local-sgd",
            "schedule": {"steps": chosen["steps"]},
            "codec": CODECS[cell.codec],
            "aggregate": rule,
        },
        "budget": {"rounds": rounds},
        "membership": {"min_nodes": cell.nodes},
        "evaluation": {"batches": 64},
    }
    return parse_recipe(json.dumps(values), environment={}, where="attacks")
