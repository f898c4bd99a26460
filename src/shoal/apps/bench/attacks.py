"""`shoal bench attacks`: what an attack does to a run, against the same run without it.

In flow cells of a matrix (attack, aggregator, fraction, nodes, codec, model, seed); out flow losses. Invariant: the
attack-free run of a cell has all its nodes honest and takes their plain mean, whatever the cell's aggregator is: a
gap holds what a rule costs as well as what it lets through.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from shoal.adversary import ATTACKS, find_attack
from shoal.apps.bench.attacks_fleet import Attackers, Outcome, train
from shoal.apps.bench.attacks_setting import Cell, check_cell, recipe_for, rule_of
from shoal.apps.progress import tracked
from shoal.base.errors import ShoalError

Say = Callable[[str], None]
MEAN = {"kind": "mean"}
RULES = (
    "mean",
    "clipped-mean",
    "median",
    "trimmed-mean",
    "krum",
    "multi-krum",
    "bulyan",
    "geometric-median",
    "centred-clipping",
    "default",
)
FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.45)
"""The whole matrix's other sides."""


def measure(cell: Cell) -> dict[str, Any]:
    """One cell. Raises SH-ATTACK-01, SH-RECIPE-02 or -03."""
    check_cell(cell)
    rule = rule_of(cell.aggregator)
    recipe = recipe_for(cell, rule)
    torch.set_num_threads(
        1
    )  # Models this small gain nothing from more, and last digits would depend on them.
    began = time.monotonic()
    clean = _clean(dataclasses.replace(cell, attack="", aggregator="", fraction=0.0))
    attackers = Attackers(make=find_attack(cell.attack), count=cell.attackers, seed=cell.seed)
    found = train(recipe, cell.nodes, attackers)
    return _fields(cell, rule, found, clean, time.monotonic() - began)


@lru_cache(maxsize=64)
def _clean(cell: Cell) -> Outcome:
    return train(recipe_for(cell, MEAN), cell.nodes, None)


def _fields(
    cell: Cell, rule: dict[str, Any], found: Outcome, clean: Outcome, seconds: float
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "attack": cell.attack,
        "aggregator": rule["kind"],
        "rule": rule,
        "fraction": cell.fraction,
        "attackers": cell.attackers,
        "nodes": cell.nodes,
        "codec": cell.codec,
        "model": cell.model,
        "seed": cell.seed,
        "loss": _rounded(found.loss),
        "clean_loss": _rounded(clean.loss),
        "gap": _rounded(found.loss / clean.loss - 1),
        "accuracy": round(found.accuracy, 4),
        "clean_accuracy": round(clean.accuracy, 4),
        "accuracy_gap": round(1 - found.accuracy / clean.accuracy, 4),
        "void": found.void,
        "seconds": round(seconds, 1),
    }
    if found.backdoor is not None:
        fields["backdoor_success"] = round(found.backdoor, 4)
    return fields


def _rounded(value: float) -> float | None:
    """JSON has no word for what is not finite."""
    return round(value, 5) if math.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The sides of a matrix."""

    attacks: Sequence[str]
    aggregators: Sequence[str]
    fractions: Sequence[float]


def chosen(
    attacks: Sequence[str], aggregators: Sequence[str], fractions: Sequence[float], *, whole: bool
) -> Asked:
    """What was named; for what was not, one of each, or all if the whole matrix is wanted."""
    every = Asked(attacks=list(ATTACKS), aggregators=RULES, fractions=FRACTIONS)
    one = Asked(attacks=["sign-flip"], aggregators=["default"], fractions=[0.2])
    rest = every if whole else one
    return Asked(
        attacks=attacks or rest.attacks,
        aggregators=aggregators or rest.aggregators,
        fractions=fractions or rest.fractions,
    )


def measure_all(asked: Asked, cell: Cell, say: Say) -> list[dict[str, Any]]:
    """Every attack with every aggregator at every fraction, but where a guard refuses it; alone, that is an error. All
    names are checked before anything is trained."""
    sides = itertools.product(asked.attacks, asked.aggregators, asked.fractions)
    cells = [
        dataclasses.replace(cell, attack=attack, aggregator=aggregator, fraction=fraction)
        for attack, aggregator, fraction in sides
    ]
    sound = [each for each in cells if len(cells) == 1 or _is_sound(each, say)]
    rows = []
    for each in tracked(sound, "cells"):
        rows.append(measure(each))
        say(line(rows[-1]))
    return rows


def _is_sound(cell: Cell, say: Say) -> bool:
    check_cell(cell)
    try:
        recipe_for(cell, rule_of(cell.aggregator))
    except ShoalError as error:
        if error.code != "SH-RECIPE-03":
            raise
        say(f"left out: {error.cause}")
        return False
    return True


def line(row: dict[str, Any]) -> str:
    """A cell, for people."""
    parts = [
        f"{row['attack']:18} {_named(row):17} {row['fraction']:4.0%} of {row['nodes']:<3}",
        f"{row['codec']:8} loss {_shown(row['loss'])} clean {_shown(row['clean_loss'])} gap {_percent(row['gap'])}",
    ]
    if "accuracy" in row:
        parts.append(f"accuracy {row['accuracy']:.1%} ({row['clean_accuracy']:.1%})")
    if "backdoor_success" in row:
        parts.append(f"backdoor {row['backdoor_success']:.0%}")
    return "  ".join(parts)


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Attacks down, aggregators and fractions across: the gap in loss."""
    columns = list(dict.fromkeys((_named(row), row["fraction"]) for row in rows))
    found = {(row["attack"], _named(row), row["fraction"]): row for row in rows}
    yield "| attack | " + " | ".join(f"{name} {fraction:.0%}" for name, fraction in columns) + " |"
    yield "| --- |" + " ---: |" * len(columns)
    for attack in dict.fromkeys(row["attack"] for row in rows):
        cells = [found[attack, *column] for column in columns]
        yield (f"| {attack} | " + " | ".join(_percent(row["gap"]) for row in cells) + " |")


def _named(row: dict[str, Any]) -> str:
    """The rule as a person would give it: two that differ in a parameter are two."""
    given = [f"{name}={json.dumps(value)}" for name, value in row["rule"].items() if name != "kind"]
    return " ".join([row["aggregator"], *given])


def _shown(value: float | None) -> str:
    return "  none" if value is None else f"{value:6.4f}"


def _percent(value: float | None) -> str:
    return "lost" if value is None else f"{value:.1%}"
