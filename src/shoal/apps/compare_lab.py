"""Recipes on a fleet in the lab: real processes, one after another on the same hosts, as curves.

In flow a fleet and trials; out flow their curves and what the lab says of itself. Invariant: every trial has the same
hosts and lines; the coordinator has a host of its own, on a line that is never the bottleneck.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.apps.compare_curves import Curve, Point, Prices, with_bytes
from shoal.apps.progress import lasting
from shoal.base.errors import ShoalError
from shoal.lab.fleet import Fleet, HostSpec
from shoal.lab.keeping import Process
from shoal.lab.lab import Lab
from shoal.lab.library import with_host
from shoal.lab.report import Report
from shoal.lab.scratch import scratch
from shoal.strategy.recipe import Recipe

COORDINATOR = "coordinator"
PROGRAM = "shoal.apps.compare_program"
READY_S = 180.0
AFTER_S = 150.0
"""How long a trial may take beyond its own time: the first plan, the last entry."""
LOOK_S = 0.1
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    name: str
    recipe: Recipe
    most_s: float
    until_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InLab:
    curves: tuple[Curve, ...]
    report: Report


Next = Callable[[Sequence[Curve]], Trial | None]
"""Given the curves so far, what comes next."""


def step_of(fleet: Fleet) -> float:
    """What a step takes the fleet's devices of speed 1. Raises SH-LAB-02 if it does not say: in the lab they would be
    as fast as this machine, and nothing would say how busy they are."""
    if fleet.step is None:
        raise ShoalError(
            "SH-LAB-02", f"fleet {fleet.name} does not say what a step takes", "give it `step: 200 ms`, say"
        )
    return fleet.step


def run_in_lab(
    fleet: Fleet, following: Next, say: Say, *, measure: bool = True, prices: Prices | None = None
) -> InLab:
    """Trial after trial until there is none. Raises SH-LAB-02 for a fleet whose devices have no pace, SH-RUN-01 if a
    program fails, and what a lab raises."""
    step_of(fleet)
    seen = with_host(fleet, HostSpec(name=COORDINATOR, profile="datacentre"))
    with scratch("compare-") as folder, Lab(seen) as lab:
        if measure:
            say("measuring the emulated links")
            lab.measure()
        say(f"starting {len(lab.hosts)} programs")
        programs = _start(lab, folder)
        lab.begin()
        lab.judge_from_now()
        curves: list[Curve] = []
        while (trial := following(curves)) is not None:
            curves.append(_try(lab, folder, len(curves), trial, programs, say, prices or Prices()))
        report = lab.report()
        (folder / f"run-{len(curves)}.json").write_text("null", "utf-8")
        (folder / "end").touch()
        for program in programs:
            program.wait(LOOK_S)
        lab.end_programs(programs)
        return InLab(curves=tuple(curves), report=report)


def _start(lab: Lab, folder: Path) -> list[Process]:
    programs = []
    for host in lab.hosts:
        role = "coordinator" if host == COORDINATOR else "node"
        words = ["env", "OMP_NUM_THREADS=1", sys.executable, "-m", PROGRAM, role, str(folder)]
        with open(folder / f"{host}.log", "wb") as log:
            programs.append(lab.start(host, words, output=log.fileno(), errors=log.fileno()))
    ends = time.monotonic() + READY_S
    for host in lab.hosts:
        _wait_for(folder / f"ready-{host}", ends, programs, folder)
    return programs


def _try(
    lab: Lab, folder: Path, number: int, trial: Trial, programs: list[Process], say: Say, prices: Prices
) -> Curve:
    say(f"{trial.name}: at most {trial.most_s:.0f} s")
    speeds = sum(line.speed for line in lab.network.lines if line.name != COORDINATOR)
    asked = {
        "name": trial.name,
        "recipe": trial.recipe.model_dump(mode="json"),
        "most_s": trial.most_s,
        "until_loss": trial.until_loss,
        "speeds": speeds,
    }
    if number:
        lab.begin_again()  # What the fleet's file says will happen, happens to every trial.
    before = _sent_bytes(lab)
    part = folder / "asked.part"
    part.write_text(json.dumps(asked), "utf-8")
    part.replace(folder / f"run-{number}.json")
    ends = time.monotonic() + AFTER_S
    _wait_for(folder / f"began-{number}", ends, programs, folder)
    began, paced_s = time.monotonic(), lab.report().pace.paced_s
    with lasting(trial.most_s):
        _wait_for(folder / f"curve-{number}.json", ends + trial.most_s, programs, folder)
    took_s, paced_s = time.monotonic() - began, lab.report().pace.paced_s - paced_s
    curve = _read(folder / f"curve-{number}.json")
    (folder / f"over-{number}").touch()
    nodes = len(lab.hosts) - 1
    curve = replace(curve, utilisation=min(1.0, paced_s / (nodes * took_s)))
    curve = with_bytes(curve, _sent_bytes(lab) - before, speeds, prices)
    say(
        f"{trial.name}: {curve.rounds} rounds, loss {curve.best:.3f}, devices busy {curve.utilisation:.0%} "
        f"of {took_s:.0f} s"
    )
    return curve


def _sent_bytes(lab: Lab) -> int:
    return sum(host.sent_bytes for host in lab.report().hosts)


def _read(path: Path) -> Curve:
    values = json.loads(path.read_text("utf-8"))
    points = tuple(Point(**point) for point in values.pop("points"))
    return Curve(**{**values, "points": points, "reasons": tuple(values.pop("reasons"))})


def _wait_for(path: Path, ends: float, programs: list[Process], folder: Path) -> None:
    while not path.exists():
        gone = [program for program in programs if program.code not in (None, 0)]
        if gone or time.monotonic() > ends:
            who = gone[0].host if gone else "nobody"
            log = folder / f"{who}.log"
            words = log.read_text("utf-8", "replace")[-600:] if log.exists() else "it took too long"
            raise ShoalError(
                "SH-RUN-01",
                f"the comparison broke off while waiting for {path.name}: {who}: {words.strip()}",
                "see that the recipes run with `shoal demo` first; give a slow machine fewer hosts",
            )
        time.sleep(LOOK_S)
