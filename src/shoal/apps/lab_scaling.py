"""How throughput grows with the fleet, by real processes: useful samples a second, against as many lone devices.

In flow a fleet and sizes; out flows a row for each. Invariant: only samples in sealed updates count, from the first
plan to the last seal; every size has a lab of its own, which says whether its figures may be believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from shoal.apps.bench.plan import PLANNED, Question, Say, recipe_of
from shoal.apps.compare_curves import Curve
from shoal.apps.compare_lab import Trial, run_in_lab, step_of
from shoal.apps.progress import tracked
from shoal.apps.scaling import Scaled
from shoal.base.errors import ShoalError
from shoal.lab.fleet import Fleet
from shoal.lab.library import with_hosts
from shoal.lab.links import fleet_to_links

WIDTH, LR = 128, 0.05
"""Of the model that `shoal bench plan` trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSize(Scaled):
    rounds: int
    lab_valid: bool
    lab_reasons: tuple[str, ...]


def compare(fleet: Fleet, sizes: Sequence[int], seconds: float, seed: int, say: Say) -> tuple[LabSize, ...]:
    """Train each size for so long. Raises SH-LAB-02 for a fleet whose devices have no pace, SH-RUN-01 if a
    size seals nothing, and what a lab raises."""
    step_s = step_of(fleet)
    rows: list[LabSize] = []
    first = 0.0
    for size in tracked(sizes, "sizes"):
        part = with_hosts(fleet, size)
        question = Question(fleet=part, seconds=seconds, patience=1.0, width=WIDTH, lr=LR, seed=seed)
        recipe = recipe_of(PLANNED, question)
        trial = Trial(name=f"{size} nodes", recipe=recipe, most_s=seconds)
        done = run_in_lab(part, partial(_once, trial), say)
        speeds = sum(line.speed for line in fleet_to_links(part).lines)
        possible = recipe.inner.batch_size * speeds / step_s
        useful = _samples_per_s(done.curves[0], seconds)
        first = first or useful / possible
        rows.append(
            LabSize(
                nodes=size,
                useful_samples_per_s=round(useful, 2),
                possible_samples_per_s=round(possible, 2),
                throughput_share=round(useful / possible, 4),
                linear=round(useful / possible / first, 4),
                rounds=done.curves[0].rounds,
                lab_valid=done.report.valid,
                lab_reasons=done.report.reasons,
            )
        )
    return tuple(rows)


def _once(trial: Trial, curves: Sequence[Curve]) -> Trial | None:
    return None if curves else trial


def _samples_per_s(curve: Curve, seconds: float) -> float:
    if not curve.samples or not curve.seconds:
        raise ShoalError(
            "SH-RUN-01", f"{curve.name} sealed no round in {seconds:g} s", "give them longer: --seconds"
        )
    return curve.samples / curve.seconds
