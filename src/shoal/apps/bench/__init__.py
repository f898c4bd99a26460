"""`shoal bench NAME [--json]`: measurements, each with its yardstick taken in the same run.

In flow sizes and durations; out flow ratios. Invariant: progress goes to stderr; with `--json` the last line of
stdout is one JSON object. To add one: a file here with a `measure` function, and a command below. While it is on, a
bar is open that shows what was said last and since when; what has a known number of steps opens one within.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer

from shoal.apps.progress import Bar, say

app = typer.Typer(no_args_is_help=True, help="Measure training, blobs and the fold on this machine.")
Json = typer.Option(False, "--json", help="Print one JSON object as the last line.")
Presets = typer.Option(["all"], "--preset", help="A preset (repeatable), or `all` of them.")
Overlapping = typer.Option(
    ["diloco", "streaming-diloco"], "--preset", help="One without regions (repeatable)."
)
Settings = typer.Option([], "--set", help="Override a recipe field: a.b=c (repeatable).")
Fleets = typer.Option([8, 16, 32, 64], "--nodes", min=2, help="How many nodes (repeatable).")
Attacks = typer.Option([], "--attack", help="A name, or module:Class (repeatable).")
Rules = typer.Option([], "--aggregator", help="`default`, or as `krum f=0.2 nnm=true` (repeatable).")
Fractions = typer.Option([], "--fraction", help="The share that attacks, 0.2 if not given (repeatable).")
TimedRules = typer.Option([], "--rule", help="An aggregator (repeatable); all robust ones if none is given.")
Files = typer.Argument(..., help="What `shoal bench converge --json` printed.")


@app.callback()
def _group(context: typer.Context) -> None:
    """Measure training, blobs and the fold on this machine."""
    context.with_resource(Bar())


@app.command()
def fold(
    params: int = typer.Option(100_000_000, "--params", min=1000, help="Parameters in the state."),
    updates: int = typer.Option(8, "--updates", min=1, max=1000, help="Updates folded at once."),
    threads: int = typer.Option(0, "--threads", min=0, help="Threads to use; 0 for one a core."),
    as_json: bool = Json,
) -> None:
    """Fold int8 updates into a state, against copying the same bytes in memory."""
    from shoal.apps.bench.folding import measure

    _show(measure(params, updates, threads, say), as_json)


@app.command()
def blob(
    size_mb: int = typer.Option(100, "--size-mb", min=1, max=4000, help="Megabytes to move."),
    as_json: bool = Json,
) -> None:
    """Move a blob between two processes, against bare TLS streams."""
    from shoal.worlds.real.bench import measure_blob

    say(f"moving {size_mb} MB between two processes, bare and as a blob, several times")
    with Bar() as bar:
        result = measure_blob(size_mb * 1_000_000, lambda done, total: bar.at(done, total, "moves"))
    _show(result, as_json)


@app.command()
def failover(
    times: int = typer.Option(5, "--times", min=1, max=100, help="How often the leader is killed."),
    nodes: int = typer.Option(2, "--nodes", min=2, max=16, help="Nodes that train meanwhile."),
    store: str | None = typer.Option(None, "--store", help="postgresql://... instead of a file."),
    own: bool = typer.Option(False, "--own-stores", help="Coordinators with a store each, by majority."),
    as_json: bool = Json,
) -> None:
    """Kill the coordinator with another standing by: how long until the next round is sealed."""
    from shoal.apps.bench.failover import measure

    _show(measure(times, nodes, store, say, own=own), as_json)


@app.command()
def sync(
    profile: str = typer.Option("A", "--profile", help="A: 40 ms there and back. B: 100 ms and 0.5 % loss."),
    congestion: str | None = typer.Option(None, "--congestion", help="In every host: bbr, reno, cubic."),
    preset: str = typer.Option("sparseloco", "--preset", help="Whose codec and rules, e.g. auto."),
    params: int = typer.Option(10_000_000, "--params", min=1000, help="Parameters of the model."),
    as_json: bool = Json,
) -> None:
    """One outer sync between four hosts at 100 Mbit/s in the lab, and the next after one of them is cut off."""
    from shoal.apps.bench.syncing import PROFILES, measure

    if profile not in PROFILES:
        raise typer.BadParameter(f"allowed: {', '.join(PROFILES)}", param_hint="--profile")
    _show(measure(profile, congestion, preset, params, say), as_json)


@app.command()
def local(
    nodes: int = typer.Option(0, "--nodes", min=0, max=64, help="Single-thread nodes; 0 for one a core."),
    seconds: float = typer.Option(60.0, "--seconds", min=10, help="How long the connected nodes train."),
    as_json: bool = Json,
) -> None:
    """Nodes in a run on this machine, against as many trainers that know nothing of one another."""
    from shoal.apps.bench.local import measure

    _show(measure(nodes, seconds, say), as_json)


@app.command()
def sim(
    seeds: int = typer.Option(100, "--seeds", min=1, help="Toy seeds to run."),
    first: int = typer.Option(1, "--first", min=0, help="The first seed."),
    as_json: bool = Json,
) -> None:
    """Simulated seeds with the toy trainer, per CPU second."""
    from shoal.apps.bench.simulating import measure

    _show(measure(seeds, first), as_json)


@app.command()
def codec(
    params: int = typer.Option(16_000_000, "--params", min=1000, help="Parameters to encode."),
    device: str = typer.Option("cpu", "--device", help="Where the values are: cpu or cuda."),
    threads: int = typer.Option(1, "--threads", min=1, help="Threads to use; speeds are for each."),
    as_json: bool = Json,
) -> None:
    """Encode and decode with every codec, against copying the same values in memory."""
    from shoal.apps.bench.coding import measure, table

    result = measure(params, device, threads, say)
    _show(result, as_json, table)


@app.command()
def converge(
    preset: list[str] = Presets,
    small: bool = typer.Option(False, "--small", help="A model of 0.3M parameters, minutes on a laptop."),
    steps: int | None = typer.Option(None, "--steps", min=1, help="Inner steps of each worker."),
    workers: int | None = typer.Option(None, "--workers", min=1, max=256, help="Nodes in the fleet."),
    seed: int = typer.Option(0, "--seed", min=0, help="First values, samples and schedule of everything."),
    settings: list[str] = Settings,
    corpus: str | None = typer.Option(None, "--corpus", help="A text file (or .xz) instead of the stdlib."),
    device: str = typer.Option("cpu", "--device", help="Where to train: auto, cpu, cuda."),
    engine: str = typer.Option("simulated", "--engine", help="What trains the fleet."),
    plot: str | None = typer.Option(None, "--plot", help="Write gap against bits as FILE.png and FILE.svg."),
    as_json: bool = Json,
) -> None:
    """Train a model by a fleet with a preset, against its synchronous twin on the same samples."""
    from shoal.apps.bench.converge import command, frontier
    from shoal.apps.bench.converge.setup import Question

    target = frontier.check_target(plot) if plot is not None else None
    question = Question(
        small=small,
        steps=steps,
        workers=workers,
        seed=seed,
        settings=tuple(settings),
        corpus=corpus,
        device=device,
    )
    rows = command.compare(preset, question, engine, say)
    _answer(command.as_json(rows), command.table(rows), as_json)
    if target is not None:
        say(f"drawn: {', '.join(map(str, frontier.draw(command.drawable(rows), target)))}")


@app.command()
def frontier(
    files: list[Path] = Files,
    plot: str = typer.Option("frontier.png", "--plot", help="Write FILE.png and FILE.svg."),
    as_json: bool = Json,
) -> None:
    """Draw rows of earlier `converge --json` runs: gap against bits, seeds together."""
    from shoal.apps.bench.converge.frontier import check_target, draw, read_rows

    drawn = [str(path) for path in draw(read_rows(files), check_target(plot))]
    _answer({"drawn": drawn}, [f"drawn: {', '.join(drawn)}"], as_json)


@app.command()
def staleness(
    nodes: int = typer.Option(10, "--nodes", min=2, max=100, help="Nodes, the slowest 100 times slower."),
    seed: int = typer.Option(0, "--seed", min=0, help="Decides everything."),
    as_json: bool = Json,
) -> None:
    """Machines of 1x to 100x speed under each seal rule: updates accepted, and time to a loss."""
    from shoal.apps.bench.staleness import measure, table

    result = measure(nodes, seed, say)
    _show(result, as_json, table)


@app.command()
def overlap(
    preset: list[str] = Overlapping,
    params: int = typer.Option(10_000_000, "--params", min=1000, help="Parameters of the model."),
    step_ms: float = typer.Option(500.0, "--step-ms", min=100, help="How long an inner step takes."),
    steps: int = typer.Option(100, "--steps", min=2, help="Inner steps of each node."),
    nodes: int = typer.Option(8, "--nodes", min=2, max=64, help="Nodes, each at 100 Mbit/s and 80 ms."),
    seed: int = typer.Option(0, "--seed", min=0, help="Decides everything."),
    settings: list[str] = Settings,
    as_json: bool = Json,
) -> None:
    """The share of inner steps that never wait for the network, at 100 Mbit/s and 80 ms."""
    from shoal.apps.bench.overlapping import Load, measure, table

    loads = [
        Load(
            preset=name,
            params=params,
            step_s=step_ms / 1000,
            steps=steps,
            nodes=nodes,
            seed=seed,
            settings=tuple(settings),
        )
        for name in preset
    ]
    result = measure(loads, say)
    _show(result, as_json, table)


@app.command()
def digest(
    params: int = typer.Option(1_000_000, "--params", min=10_000, help="Parameters of the model."),
    nodes: list[int] = Fleets,
    folders: int = typer.Option(3, "--folders", min=1, max=15, help="Nodes that fold each shard."),
    seed: int = typer.Option(0, "--seed", min=0, help="Decides everything."),
    settings: list[str] = Settings,
    as_json: bool = Json,
) -> None:
    """What a round costs a node through digests, and without, as the fleet grows."""
    from shoal.apps.bench.digesting import Question, measure, table

    question = Question(
        params=params, nodes=tuple(nodes), folders=folders, seed=seed, settings=tuple(settings)
    )
    result = measure(question, say)
    _show(result, as_json, table)


@app.command()
def attacks(
    attack: list[str] = Attacks,
    aggregator: list[str] = Rules,
    fraction: list[float] = Fractions,
    nodes: int = typer.Option(10, "--nodes", min=2, max=200, help="Nodes in the fleet."),
    codec: str = typer.Option("int8", "--codec", help="int8, two-bit, sparse (with error feedback) or none."),
    model: str = typer.Option("digits", "--model", help="digits or gpt."),
    seed: int = typer.Option(0, "--seed", min=0, help="Decides everything."),
    rounds: int | None = typer.Option(None, "--rounds", min=1, help="Rounds of training."),
    matrix: bool = typer.Option(False, "--matrix", help="All attacks, rules, fractions that are not named."),
    as_json: bool = Json,
) -> None:
    """A fleet with attackers in it, against the same fleet without them."""
    from shoal.apps.bench.attacks import chosen, measure_all, table
    from shoal.apps.bench.attacks_setting import Cell

    sys.path.append(str(Path.cwd()))  # Where a person's own attack most likely lies.
    cell = Cell(attack="", nodes=nodes, codec=codec, model=model, seed=seed, rounds=rounds)
    rows = measure_all(chosen(attack, aggregator, fraction, whole=matrix), cell, say)
    found = rows[0] if len(rows) == 1 else {"cells": rows}
    _answer(found, table(rows), as_json)


@app.command()
def audit(
    rate: float = typer.Option(0.05, "--rate", min=0.001, max=1.0, help="Extra compute, as in audit.rate."),
    share: float = typer.Option(0.3, "--forged", min=0.0, max=1.0, help="The part of its claims it forges."),
    nodes: int = typer.Option(20, "--nodes", min=5, max=200, help="Nodes, one of them a forger."),
    rounds: int = typer.Option(50, "--rounds", min=2, max=1000, help="Rounds of a game."),
    games: int = typer.Option(500, "--games", min=0, help="Of each forgery; 0: only honest claims again."),
    codec: str = typer.Option("int8", "--codec", help="int8, two-bit, sparse (with error feedback) or none."),
    claims: int = typer.Option(
        4, "--claims", min=1, help="Honest claims of digits to run again in each setting."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Decides everything."),
    as_json: bool = Json,
) -> None:
    """How soon audits find a forger, what they cost, and how far honest hardware is from being accused."""
    from shoal.apps.bench.audit import Setting, bench, table

    found = bench(
        Setting(
            rate=rate,
            share=share,
            nodes=nodes,
            rounds=rounds,
            games=games,
            codec=codec,
            claims=claims,
            seed=seed,
        ),
        say,
    )
    _answer(found, [table(found)], as_json)


@app.command()
def privacy(
    epsilon: float = typer.Option(8.0, "--epsilon", min=0.01, max=1000, help="What each node may spend."),
    nodes: int = typer.Option(2, "--nodes", min=1, max=32, help="Nodes, each with a part of the data."),
    seed: int = typer.Option(0, "--seed", min=0, help="First values and samples."),
    rounds: int = typer.Option(60, "--rounds", min=1, max=10_000, help="Rounds that are planned."),
    as_json: bool = Json,
) -> None:
    """Train digits with differential privacy, against the same run without."""
    from shoal.apps.bench.privacy import measure

    _show(measure(epsilon, nodes, seed, rounds, say), as_json)


@app.command()
def signatures(
    times: int = typer.Option(200, "--times", min=1, max=100_000, help="Signatures of each kind."),
    as_json: bool = Json,
) -> None:
    """Sign and check with Ed25519, and with Ed25519 and ML-DSA-65 together."""
    from shoal.apps.bench.signatures import measure

    _show(measure(times, say), as_json)


@app.command()
def robust(
    params: int = typer.Option(10_000_000, "--params", min=1000, help="Parameters in the state."),
    updates: int = typer.Option(16, "--updates", min=1, max=1000, help="Updates folded at once."),
    threads: int = typer.Option(0, "--threads", min=0, help="Threads to use; 0 for one a core."),
    codec: str = typer.Option("int8", "--codec", help="What the updates are encoded with."),
    rule: list[str] = TimedRules,
    training: bool = typer.Option(True, help="Train some steps, too, for the fold's share of a round."),
    as_json: bool = Json,
) -> None:
    """Fold a round by every robust rule, against the plain mean, `byzfl`, and a round's local steps."""
    from shoal.apps.bench.robust import measure, table

    result = measure(params, updates, threads, codec, rule, say, training=training)
    _show(result, as_json, table)


@app.command()
def plan(
    fleet: str = typer.Option("volunteers", "--fleet", help="A fleet file, or a shipped fleet's name."),
    seconds: float = typer.Option(20.0, "--seconds", min=5.0, max=600.0, help="So long the planned trains."),
    patience: float = typer.Option(6.0, "--patience", min=1.0, max=50.0, help="The others, times that."),
    width: int = typer.Option(128, "--width", min=8, max=4096, help="Of the model's three layers."),
    lr: float = typer.Option(0.05, "--lr", help="The learning rate of all three."),
    seed: int = typer.Option(0, "--seed", min=0, help="Of everything that is drawn."),
    simulated: bool = typer.Option(False, "--simulated", help="In the simulator, not by real processes."),
    settings: list[str] = Settings,
    as_json: bool = Json,
) -> None:
    """Time to the same validation loss: planned, against naive `ddp` and `local-sgd`, in the lab.

    There, the fleet must say what a `step` takes; simulated, it is 0.2 s where the fleet does not say.
    """
    from shoal.apps.bench.plan import Question, in_lab, in_simulator, table
    from shoal.lab.library import find_fleet

    question = Question(
        fleet=find_fleet(fleet),
        seconds=seconds,
        patience=patience,
        width=width,
        lr=lr,
        seed=seed,
        settings=tuple(settings),
    )
    result = in_simulator(question, say) if simulated else in_lab(question, say)
    _show(result, as_json, table)


@app.command()
def chain(
    transactions: int = typer.Option(4000, "--transactions", min=4, max=100_000, help="How many to send."),
    as_json: bool = Json,
) -> None:
    """Settling on a local chain: transactions a second, gas of every call, and seal to claimable."""
    from shoal.apps.bench.chain import measure

    _show(measure(transactions, say), as_json)


@app.command()
def rejoin(
    nodes: int = typer.Option(3, "--nodes", min=2, max=16, help="Nodes in the run."),
    kills: int = typer.Option(3, "--kills", min=1, max=100, help="How often one is killed."),
    as_json: bool = Json,
) -> None:
    """kill -9 of a node, real processes: how soon it contributes again."""
    from shoal.apps.bench.rejoin import measure

    _show(measure(nodes, kills, say), as_json)


@app.command()
def join(
    megabytes: int = typer.Option(100, "--megabytes", min=1, max=4000, help="Size of the state."),
    seeders: int = typer.Option(4, "--seeders", min=1, max=32, help="Nodes that have it."),
    up_mbit: float = typer.Option(50.0, "--up-mbit", min=1, help="What each of them can send."),
    down_mbit: float = typer.Option(100.0, "--down-mbit", min=1, help="What the joiner can receive."),
    lab: bool = typer.Option(True, "--lab/--no-lab", help="Emulated lines, or rate-limited sockets."),
    as_json: bool = Json,
) -> None:
    """How long a joiner takes for a state, against its size over its bandwidth."""
    from shoal.apps.bench.join import Question, measure

    question = Question(megabytes=megabytes, seeders=seeders, up_mbit=up_mbit, down_mbit=down_mbit, lab=lab)
    _show(measure(question, say), as_json)


@app.command()
def churn(
    nodes: int = typer.Option(10, "--nodes", min=4, max=200, help="Nodes at any time."),
    rounds: int = typer.Option(200, "--rounds", min=4, help="Rounds of training."),
    replaced: float = typer.Option(0.2, "--replaced", min=0, max=0.9, help="Share replaced every round."),
    lost: float = typer.Option(0.5, "--lost", min=0, max=0.9, help="Share lost at once, half-way."),
    seed: int = typer.Option(0, "--seed", min=0, help="Decides everything."),
    as_json: bool = Json,
) -> None:
    """Nodes come and go all the time, in simulation: the final loss against that of a calm run."""
    from shoal.apps.bench.churn import Question, measure

    question = Question(nodes=nodes, rounds=rounds, replaced=replaced, lost=lost, seed=seed)
    _show(measure(question, say), as_json)


@app.command()
def soak(
    minutes: float = typer.Option(20.0, "--minutes", min=0.5, help="How long processes are killed."),
    nodes: int = typer.Option(3, "--nodes", min=2, max=16, help="Nodes in the run."),
    seed: int = typer.Option(0, "--seed", min=0, help="Decides who is killed, and when."),
    as_json: bool = Json,
) -> None:
    """kill -9 of nodes and coordinators at random, real processes: what is lost, and what grows."""
    from shoal.apps.bench.soak import measure

    _show(measure(minutes, nodes, seed, say), as_json)


@app.command()
def dashboard(
    seconds: float = typer.Option(15.0, "--seconds", min=2, help="How long each is measured."),
    many_every: float = typer.Option(1.0, "--many-every", min=0.1, help="Seconds between beats of 1,000."),
    as_json: bool = Json,
) -> None:
    """From a node's heartbeat to pixels in a browser, with 50 and with 1,000 nodes."""
    from shoal.apps.bench.dashboard import measure

    _show(measure(seconds, many_every, say), as_json)


@app.command()
def coordinator(
    nodes: int = typer.Option(5000, "--nodes", min=1, max=100_000, help="Nodes that beat every 5 s."),
    sockets: int = typer.Option(50, "--sockets", min=0, max=500, help="Open dashboards."),
    seconds: float = typer.Option(20.0, "--seconds", min=2, help="How long it is measured."),
    runs: int = typer.Option(25, "--runs", min=1, help="Runs that the nodes are spread over."),
    as_json: bool = Json,
) -> None:
    """The API of a coordinator on one core, under thousands of nodes and dozens of dashboards."""
    from shoal.apps.bench.coordinator import measure

    _show(measure(nodes, sockets, seconds, runs, say), as_json)


@app.command()
def masks(
    nodes: int = typer.Option(16, "--nodes", min=3, max=128, help="Members of the group."),
    dropouts: int = typer.Option(3, "--dropouts", min=0, max=127, help="Those that vanish half-way."),
    parameters: int = typer.Option(10_000_000, "--parameters", min=1, help="Numbers in an update."),
    threshold: int = typer.Option(0, "--threshold", min=0, help="Must answer; 0: over 2/3, or who is left."),
    seed: int = typer.Option(0, "--seed", min=0, help="Of the updates."),
    as_json: bool = Json,
) -> None:
    """Secure aggregation: one round of a group on one core, with dropouts; is the sum exact, how long."""
    from shoal.apps.bench.masks import measure

    _show(measure(nodes, dropouts, parameters, threshold, seed, say), as_json)


@app.command()
def upload(
    kilobytes: int = typer.Option(100, "--kilobytes", min=10, max=100_000, help="Text in the dataset."),
    times: int = typer.Option(3, "--times", min=1, max=100, help="How many runs."),
    as_json: bool = Json,
) -> None:
    """From a dataset that is uploaded to the first step that trains on it."""
    from shoal.apps.bench.upload import measure

    _show(measure(kilobytes, times, say), as_json)


def _show(
    result: dict[str, Any], as_json: bool, table: Callable[[dict[str, Any]], list[str]] | None = None
) -> None:
    _answer(result, (table or _lines)(result), as_json)


def _lines(result: dict[str, Any]) -> list[str]:
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in result.items()}
    return [f"{name:24} {value}" for name, value in shown.items()]


def _answer(fields: dict[str, Any], lines: Iterable[str], as_json: bool) -> None:
    say(json.dumps(fields) if as_json else "\n".join(lines), sys.stdout)
