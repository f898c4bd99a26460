"""`shoal compare`: two or more recipes on one fleet, side by side.

In flow recipe files and a fleet; out flow a table and a picture of loss against time, bytes and cost. Invariant: all
recipes have the same fleet, the same time and the same seed, in the simulator (quickly) or in the lab (really).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from shoal.apps.compare_curves import Curve, Prices
from shoal.apps.flat import without_regions
from shoal.apps.progress import say, tracked
from shoal.base.units import duration_s, show_bytes
from shoal.lab.fleet import Fleet
from shoal.lab.library import find_fleet, with_hosts
from shoal.lab.links import fleet_to_links
from shoal.strategy.recipe import Recipe, load_recipe

Recipes = typer.Argument(..., metavar="RECIPE...", help="Recipe files, two or more.", show_default=False)
Settings = typer.Option([], "--set", help="Override a field of every recipe: a.b=c (repeatable).")
Output = typer.Option(Path("compare"), "--plot", help="Where the picture goes (.png and .svg).")
USUAL_S = "10m"


def compare(
    recipes: list[Path] = Recipes,
    fleet: str = typer.Option("volunteers", "--fleet", help="A fleet file, or a shipped fleet's name."),
    nodes: int | None = typer.Option(None, "--nodes", min=1, max=200, help="So many of its hosts."),
    most: str = typer.Option(USUAL_S, "--time", help="How long each may train, e.g. 5m; or its own budget."),
    lab: bool = typer.Option(False, "--lab", help="By real processes in the lab, not in the simulator."),
    output: Path = Output,
    no_plot: bool = typer.Option(False, "--no-plot", help="Draw nothing."),
    device_hour: float = typer.Option(0.05, "--device-hour", min=0.0, help="Price of a device of speed 1."),
    gigabyte: float = typer.Option(0.02, "--gigabyte", min=0.0, help="Price of a gigabyte sent."),
    settings: list[str] = Settings,
    seed: int = typer.Option(0, "--seed", min=0, help="Of everything that is drawn."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object as the last line."),
) -> None:
    """Train recipes on the same fleet, and show which is faster, leaner and cheaper."""
    if len(recipes) < 2:
        raise typer.BadParameter("give two recipes or more", param_hint="RECIPE...")
    try:
        most_s = duration_s(most)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--time") from None
    chosen = find_fleet(fleet)
    chosen = with_hosts(chosen, nodes) if nodes else chosen
    named = _named(recipes, settings, len(fleet_to_links(chosen).lines))
    prices = Prices(device_hour=device_hour, gigabyte=gigabyte)
    curves, about = (_in_lab if lab else _simulated)(named, chosen, most_s, seed, prices)
    made = [] if no_plot else [str(path) for path in _plot(curves, chosen, output, lab)]
    result = {**summary(curves), **about, "fleet": chosen.name, "plots": made}
    if as_json:
        print(json.dumps(result))
        return
    print("\n".join(table(curves)))
    for path in made:
        print(path)


def _named(paths: Sequence[Path], settings: Sequence[str], nodes: int) -> dict[str, Recipe]:
    """Recipes by what they are called in the table: their files' names, told apart if need be. A recipe that waits for
    more nodes than there are begins with those that there are."""
    found: dict[str, Recipe] = {}
    for number, path in enumerate(paths, 1):
        recipe = without_regions(load_recipe(path, overrides=settings), path.stem)
        if recipe.membership.min_nodes > nodes:
            enough = recipe.membership.model_copy(update={"min_nodes": nodes})
            recipe = recipe.model_copy(update={"membership": enough})
        found[path.stem if path.stem not in found else f"{path.stem} ({number})"] = recipe
    return found


def _simulated(
    named: dict[str, Recipe], fleet: Fleet, most_s: float, seed: int, prices: Prices
) -> tuple[list[Curve], dict[str, Any]]:
    from shoal.apps.compare_simulated import simulate

    curves = []
    for name, recipe in tracked(named.items(), "recipes"):
        say(f"{name}: simulating {most_s:.0f} s at most")
        curves.append(simulate(name, fleet, recipe, most_s=most_s, seed=seed, prices=prices))
    return curves, {"lab": None}


def _in_lab(
    named: dict[str, Recipe], fleet: Fleet, most_s: float, seed: int, prices: Prices
) -> tuple[list[Curve], dict[str, Any]]:
    from shoal.apps.compare_lab import Trial, run_in_lab

    trials = [Trial(name=name, recipe=recipe, most_s=most_s) for name, recipe in named.items()]
    done = run_in_lab(
        fleet.model_copy(update={"seed": fleet.seed + seed}),
        lambda curves: trials[len(curves)] if len(curves) < len(trials) else None,
        say,
        prices=prices,
    )
    report = done.report
    about = {"valid": report.valid, "reasons": list(report.reasons), "congestion": report.congestion}
    return list(done.curves), {"lab": about}


def _plot(curves: Sequence[Curve], fleet: Fleet, output: Path, lab: bool) -> tuple[Path, Path]:
    from shoal.apps.compare_plot import plot

    return plot(curves, f"{fleet.name}, {'in the lab' if lab else 'simulated'}", output)


# --- the table -------------------------------------------------------------------------------------------


def common_loss(curves: Sequence[Curve]) -> float:
    """The lowest loss that every one of them reached by training; infinite if one was never validated."""
    return max((curve.best_trained for curve in curves), default=math.inf)


def summary(curves: Sequence[Curve]) -> dict[str, Any]:
    target = common_loss(curves)
    rows = []
    for curve in curves:
        reached = math.isfinite(target)
        at = next((point for point in curve.points if point.loss <= target), None) if reached else None
        rows.append(
            {
                "name": curve.name,
                "best_loss": _rounded(curve.best),
                "seconds": round(curve.seconds, 1),
                "rounds": curve.rounds,
                "steps": curve.steps,
                "samples": curve.samples,
                "utilisation": round(curve.utilisation, 4),
                "sent_bytes": curve.sent_bytes,
                "cost": round(curve.cost, 6),
                "seconds_to_common_loss": _rounded(curve.seconds_to(target) if reached else math.inf),
                "bytes_to_common_loss": at.sent_bytes if at else None,
                "cost_to_common_loss": round(at.cost, 6) if at else None,
            }
        )
    return {"common_loss": _rounded(target), "recipes": rows}


def table(curves: Sequence[Curve]) -> list[str]:
    found = summary(curves)
    wide = max(len(curve.name) for curve in curves)
    common = found["common_loss"]
    head = f"{'':<{wide}}  {'best loss':>9} {'rounds':>7} {'steps':>8} {'busy':>6} {'sent':>10} {'cost':>8}"
    to_common = f"to loss {common:g}" if common is not None else "to no common loss"
    lines = [f"{head} | {to_common}: {'seconds':>8} {'bytes':>10} {'cost':>8}"]
    for row in found["recipes"]:
        at_bytes = row["bytes_to_common_loss"]
        at = f"{_shown(row['seconds_to_common_loss']):>8} {show_bytes(at_bytes) if at_bytes else '-':>10}"
        lines.append(
            f"{row['name']:<{wide}}  {_shown(row['best_loss']):>9} {row['rounds']:>7} {row['steps']:>8} "
            f"{row['utilisation']:>6.0%} {show_bytes(row['sent_bytes']):>10} {row['cost']:>8.4f} | "
            f"{'':<{len(to_common)}}  {at} {_shown(row['cost_to_common_loss']):>8}"
        )
    return lines


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
