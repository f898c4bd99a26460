"""Planned against naive on one fleet: how long each takes to the same validation loss.

In flow a fleet and where to try it (the lab's real processes, or the simulator); out flow speedups, utilisation and
whether the lab's figures may be believed. Invariant: all three train the same model on the same data with the same
batch and learning rate; the naive ones give everybody equal work and wait for all. What a naive one has not reached
within its time counts for that time, and is said to be a bound.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.apps.compare_curves import Curve
from shoal.apps.compare_lab import Trial, run_in_lab
from shoal.apps.compare_simulated import simulate
from shoal.lab.fleet import Fleet
from shoal.lab.links import fleet_to_links
from shoal.strategy.recipe import Recipe, parse_recipe

Say = Callable[[str], None]
WAIT_S = 3600.0
"""The naive wait for all: nobody's deadline comes before that."""
ENOUGH_OF_FOUR = 3
"""A run begins with three quarters of the fleet: some of it may be away just then."""
NAIVE = ("ddp", "local-sgd")
PLANNED = "planned"
STRATEGIES: dict[str, dict[str, Any]] = {
    PLANNED: {"preset": "adaptive"},
    "ddp": {"preset": "ddp", "seal": {"kind": "all-or-deadline", "deadline_s": WAIT_S}},
    "local-sgd": {"preset": "local-sgd", "seal": {"kind": "all-or-deadline", "deadline_s": WAIT_S}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    fleet: Fleet
    seconds: float
    """For so long the planned run trains; what it reaches is what the others are timed to."""
    patience: float
    """So many times as long the others may take."""
    width: int
    lr: float
    seed: int = 0
    settings: tuple[str, ...] = ()
    """Over the planned recipe, `a.b=c`."""

    @property
    def nodes(self) -> int:
        return len(fleet_to_links(self.fleet).lines)


def recipe_of(name: str, question: Question) -> Recipe:
    """What one of the three trains by."""
    values = {
        "name": f"bench plan {name}",
        "seed": question.seed,
        "model": {"kind": "mlp", "width": question.width, "layers": 3},
        "data": {"source": "digits"},
        "inner": {"kind": "sgd", "lr": question.lr, "batch_size": 8},
        "strategy": STRATEGIES[name],
        "budget": {"seconds": WAIT_S},
        "membership": {"min_nodes": max(1, ENOUGH_OF_FOUR * question.nodes // 4)},
        "storage": {"archive": False},
        "evaluation": {"every": 1, "batches": 4},
    }
    settings = question.settings if name == PLANNED else ()
    return parse_recipe(json.dumps(values), overrides=settings, environment={})


def in_lab(question: Question, say: Say, *, measure: bool = True) -> dict[str, Any]:
    """By real processes. Raises SH-LAB-02 for a fleet whose devices have no pace, and what a lab raises."""

    planned = recipe_of(PLANNED, question)  # What is wrong in it is said before anything is started.

    def following(curves: Sequence[Curve]) -> Trial | None:
        if not curves:
            return Trial(name=PLANNED, recipe=planned, most_s=question.seconds)
        if len(curves) > len(NAIVE):
            return None
        name, target = NAIVE[len(curves) - 1], curves[0].best
        most_s = question.patience * curves[0].seconds_to(target)
        return Trial(name=name, recipe=recipe_of(name, question), most_s=most_s, until_loss=target)

    done = run_in_lab(question.fleet, following, say, measure=measure)
    found = _result(question, done.curves)
    report = done.report
    return {
        **found,
        "lab_valid": report.valid,
        "lab_reasons": list(report.reasons),
        "congestion": report.congestion,
        "emulator": report.emulator,
        "cpu_busy": round(report.cpu.busy_mean, 3),
        "lab_seconds": round(report.seconds, 1),
    }


def in_simulator(question: Question, say: Say) -> dict[str, Any]:
    """In virtual time; nothing of it is the lab's. Devices of a fleet without a step take the simulator's usual one."""
    planned = _simulated(PLANNED, question, question.seconds, -math.inf, say)
    most_s = question.patience * planned.seconds_to(planned.best)
    naive = [_simulated(name, question, most_s, planned.best, say) for name in NAIVE]
    return {**_result(question, [planned, *naive]), "lab_valid": None}


def _simulated(name: str, question: Question, most_s: float, until_loss: float, say: Say) -> Curve:
    curve = simulate(
        name,
        question.fleet,
        recipe_of(name, question),
        most_s=most_s,
        until_loss=until_loss,
        seed=question.seed,
    )
    say(f"{name}: {curve.rounds} rounds, loss {curve.best:.3f}, devices busy {curve.utilisation:.0%}")
    return curve


def _result(question: Question, curves: Sequence[Curve]) -> dict[str, Any]:
    planned, target = curves[0], curves[0].best
    mine_s = planned.seconds_to(target)
    found: dict[str, Any] = {"fleet": question.fleet.name, "nodes": question.nodes, "loss": round(target, 4)}
    bounds = []
    for curve in curves[1:]:
        theirs_s = curve.seconds_to(target)
        if not math.isfinite(theirs_s):
            bounds.append(curve.name)
            theirs_s = max(curve.seconds, question.patience * mine_s)
        key = curve.name.replace("-", "_")
        found[f"speedup_vs_{key}"] = round(theirs_s / mine_s, 2)
        found[f"{key}_seconds"] = round(theirs_s, 1)
    return {
        **found,
        "planned_seconds": round(mine_s, 1),
        "utilisation": round(planned.utilisation, 4),
        "at_least": bounds,
        "runs": {
            curve.name: {
                "rounds": curve.rounds,
                "steps": curve.steps,
                "best_loss": round(curve.best, 4),
                "utilisation": round(curve.utilisation, 4),
                "sent_bytes": curve.sent_bytes,
            }
            for curve in curves
        },
        "reasons": list(planned.reasons),
    }


def table(result: dict[str, Any]) -> list[str]:
    """For people."""
    bounds = result["at_least"]
    lines = [
        f"{result['fleet']}: {result['nodes']} nodes, validation loss {result['loss']:g} in "
        f"{result['planned_seconds']} s",
    ]
    for name in NAIVE:
        key = name.replace("-", "_")
        more = "at least " if name in bounds else ""
        lines.append(
            f"  {more}{result[f'speedup_vs_{key}']}x faster than {name} ({more}{result[f'{key}_seconds']} s)"
        )
    lines.append(f"  devices trained {result['utilisation']:.1%} of the time")
    valid = {True: "yes", False: "no", None: "simulated"}[result["lab_valid"]]
    lines.append(f"  lab valid: {valid}")
    lines += [f"    {reason}" for reason in result.get("lab_reasons", ())]
    lines += [f"  plan: {reason}" for reason in result["reasons"][:4]]
    return lines
