"""`shoal sim`: seeded catastrophes from the command line.

In flow seeds; out flow one line a failure with the command that replays it, and a last line that counts.
Invariant: exit status 0 only if no seed failed; a seed's fingerprint is the same in every process.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import typer

from shoal.apps.progress import say, tracked
from shoal.apps.scaling import sizes_in
from shoal.base.units import duration_s
from shoal.worlds.simulated.chaos import Outcome, run_seed

app = typer.Typer(no_args_is_help=True, help="Simulated runs under seeded catastrophes.")
Settings = typer.Option([], "--set", help="Override a recipe field: a.b=c (repeatable).")


@app.callback()
def _group() -> None:
    """Simulated runs under seeded catastrophes."""


@app.command()
def chaos(
    seeds: int = typer.Option(100, "--seeds", min=1, help="How many seeds to run."),
    first: int = typer.Option(1, "--first", min=0, help="The first seed."),
    seed: int | None = typer.Option(None, "--seed", min=0, help="Run this one seed only, in this process."),
    fingerprint: bool = typer.Option(
        False, "--fingerprint", help="With --seed: print its fingerprint alone."
    ),
    failover: bool = typer.Option(
        False,
        "--failover",
        help="With coordinators that stand by, and trouble for whoever leads: on one database, or (one seed in three) "
        "with a store each and a log that a majority keeps.",
    ),
    kind: str = typer.Option(
        "", "--kind", help="With --failover, all seeds of one kind: shared or members.", metavar="KIND"
    ),
    jobs: int = typer.Option(1, "--jobs", min=1, max=256, help="Processes to run seeds in."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object as the last line."),
) -> None:
    """Draw fleet and faults from each seed, make trouble, heal, and demand progress.

    Checked on every event: one seal a round, equal states, no acknowledged claim or snapshot lost, no claim
    counted twice. A failing seed is followed by the command that replays it.
    """
    if fingerprint and seed is None:
        raise typer.BadParameter("a fingerprint is of one seed: give --seed too", param_hint="--fingerprint")
    if kind and (not failover or kind not in ("shared", "members")):
        raise typer.BadParameter("shared or members, and --failover with it", param_hint="--kind")
    how = How(failover, kind)
    if seed is not None:
        _one(seed, fingerprint, how, as_json)
        return
    began, failed, outcomes = time.process_time(), 0, []
    for at, result in tracked(_results(range(first, first + seeds), jobs, how), "seeds", seeds):
        if isinstance(result, str):
            failed += 1
            say(f"seed {at} failed: {result}\n  replay: {_replay(at, how)}", sys.stdout)
        else:
            outcomes.append(result)
    if as_json:
        cpu_s = sum(outcome.cpu_s for outcome in outcomes) or time.process_time() - began
        rounds = sum(outcome.rounds for outcome in outcomes)
        rate = len(outcomes) / cpu_s if cpu_s else 0.0
        report = {"seeds": seeds, "failed": failed, "rounds": rounds, "seeds_per_cpu_s": round(rate, 2)}
        print(json.dumps(report))
    else:
        print(f"{seeds} seeds, {failed} failed")
    raise typer.Exit(1 if failed else 0)


@app.command()
def fleet(
    name: str = typer.Argument(..., metavar="FLEET", help="A fleet file, or a shipped fleet's name."),
    nodes: int | None = typer.Option(None, "--nodes", min=1, max=4096, help="So many of its hosts."),
    regions: bool | None = typer.Option(
        None,
        "--regions/--flat",
        help="Regions with hubs, or everybody in one run. Default: regions from 101 on.",
    ),
    diurnal: bool = typer.Option(
        True, "--diurnal/--no-diurnal", help="With regions: people switch their machines off at night."
    ),
    preset: str = typer.Option("local-sgd", "--preset", help="Without regions: the algorithm."),
    rounds: int = typer.Option(10, "--rounds", min=1, help="Without regions: rounds to train."),
    most: str = typer.Option("1d", "--time", help="Virtual time after which it is stopped, e.g. 2h."),
    params: int = typer.Option(300, "--params", min=3, help="Without regions: parameters of the toy model."),
    settings: list[str] = Settings,
    seed: int = typer.Option(0, "--seed", min=0, help="Of everything that is drawn."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object as the last line."),
) -> None:
    """Train on a lab's fleet in virtual time: its lines, paths, speeds and events.

    A small fleet trains a toy model in one run. A large one has a day: regions with hubs, machines that are off at
    night, some nodes that really train a small network and others whose training is modelled after it.
    """
    from shoal.apps import simulated_day, simulated_fleet, simulated_hours
    from shoal.lab.fleet import names_of
    from shoal.lab.library import find_fleet, with_hosts

    try:
        most_s = duration_s(most)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--time") from None
    chosen = find_fleet(name)
    chosen = with_hosts(chosen, nodes) if nodes else chosen
    in_regions = len(names_of(chosen)) > simulated_day.MOST_FLAT if regions is None else regions
    played = (
        asdict(
            simulated_day.play_day(
                chosen, simulated_hours.day_recipe(settings), most_s=most_s, seed=seed, diurnal=diurnal
            )
        )
        if in_regions
        else asdict(
            simulated_fleet.play(
                chosen,
                simulated_fleet.toy_recipe(preset, rounds, settings),
                params=params,
                most_s=most_s,
                seed=seed,
            )
        )
    )
    if as_json:
        print(json.dumps(played))
        return
    for what, value in played.items():
        print(f"{what:<22} {value}")


@app.command()
def scaling(
    name: str = typer.Argument("campus", metavar="FLEET", help="A fleet file, or a shipped fleet's name."),
    nodes: str = typer.Option(
        "1,10,50,1000", "--nodes", help="Sizes to compare, the first against the others."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Of everything that is drawn."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object as the last line."),
) -> None:
    """How much useful work more nodes do: samples in sealed updates, against what their devices could."""
    from shoal.apps.simulated_scaling import compare
    from shoal.lab.library import find_fleet

    rows = compare(find_fleet(name), sizes_in(nodes, 4096), seed)
    if as_json:
        print(json.dumps({"fleet": name, "sizes": [asdict(row) for row in rows]}))
        return
    for row in rows:
        how = f"{row.regions} regions" if row.regions else "one run"
        print(
            f"{row.nodes:>5} nodes, {how}: {row.useful_samples_per_s:g} samples/s, {row.linear:.1%} of linear"
        )


@app.command()
def soak(
    hours: float = typer.Option(
        24.0, "--hours", min=1.0, help="Virtual hours under random kills. What grows is seen from 3 on."
    ),
    nodes: int = typer.Option(4, "--nodes", min=1, max=64, help="Nodes in the run."),
    seed: int = typer.Option(0, "--seed", min=0, help="Of everything that is drawn."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object as the last line."),
) -> None:
    """A run under random kills of nodes and coordinators for a day: what is lost, and what grows."""
    from shoal.apps.simulated_soak import soak as play
    from shoal.worlds.simulated.referee import Foul

    try:
        soaked = asdict(play(hours, nodes, seed, say))
    except Foul as foul:
        print(f"lost: {foul}\n  replay: shoal sim soak --hours {hours:g} --nodes {nodes} --seed {seed}")
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps(soaked))
        return
    for what, value in soaked.items():
        print(f"{what:<26} {value}")


class How(NamedTuple):
    """Whether coordinators stand by, and in which way."""

    failover: bool = False
    kind: str = ""


def _replay(seed: int, how: How) -> str:
    kind = f" --kind {how.kind}" if how.kind else ""
    return f"shoal sim chaos --seed {seed}{' --failover' if how.failover else ''}{kind}"


def _one(seed: int, fingerprint: bool, how: How, as_json: bool) -> None:
    try:
        outcome = run_seed(seed, failover=how.failover, kind=how.kind)
    except Exception as error:  # Whatever broke is what the person wants to see.
        traceback.print_exc()
        print(f"seed {seed} failed: {type(error).__name__}: {error}\n  replay: {_replay(seed, how)}")
        print(json.dumps({"seeds": 1, "failed": 1}) if as_json else "1 seeds, 1 failed")
        raise typer.Exit(1) from None
    if fingerprint:
        print(json.dumps({"fingerprint": outcome.fingerprint}) if as_json else outcome.fingerprint)
        return
    print(json.dumps(asdict(outcome)))
    if not as_json:
        print("1 seeds, 0 failed")


def _results(seeds: range, jobs: int, how: How) -> Iterator[tuple[int, Outcome | str]]:
    attempt = partial(_attempt, how=how)
    if jobs == 1:
        yield from map(attempt, seeds)
        return
    # Fork would carry over this process's threads and hooks; a fresh interpreter is what CI also gets.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(attempt, seeds, chunksize=8)


def _attempt(seed: int, *, how: How) -> tuple[int, Outcome | str]:
    try:
        return seed, run_seed(seed, failover=how.failover, kind=how.kind)
    except Exception as error:  # A seed may fail in any way; it must not stop the others.
        return seed, f"{type(error).__name__}: {error}"
