"""`shoal bench NAME [--json]`: measurements, each with its yardstick taken in the same run.

In flow sizes and durations; out flow ratios. Invariant: progress goes to stderr; with `--json` the last line of
stdout is one JSON object. To add one: a file here with a `measure` function, and a command below.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import typer

app = typer.Typer(no_args_is_help=True, help="Measure training, blobs and the fold on this machine.")
Json = typer.Option(False, "--json", help="Print one JSON object as the last line.")


@app.callback()
def _group() -> None:
    """Measure training, blobs and the fold on this machine."""


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
    _show(measure_blob(size_mb * 1_000_000), as_json)


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

    _show(measure(seeds, first, say), as_json)


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:24} {value:.4g}" if isinstance(value, float) else f"{name:24} {value}")
