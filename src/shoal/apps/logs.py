"""`shoal log show | verify | replay`: a run's log, read without changing anything.

In flow a run and where its log lies; out flow lines for people or one JSON object for tools. Invariant: nothing
is written, so that a damaged store can be looked at as often as one likes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.apps.option_groups import RunLog, grouped, say

if TYPE_CHECKING:
    from shoal.apps.logs_reading import FoundLog

app = typer.Typer(no_args_is_help=True, help="A run's log: read it, check it, rebuild the model from it.")

ProofOption = Annotated[
    Path | None,
    typer.Option("--proof", exists=True, dir_okay=False, help="A node's proof-RUN.msgpack: does it hold?"),
]


@app.command()
@grouped
def show(asked: RunLog) -> None:
    """The entries, one line each, as far as they can be read."""
    from shoal.apps.logs_reading import lines_of

    log = _find(asked)
    for line in lines_of(log.entries):
        print(json.dumps(line.fields) if asked.as_json else str(line))
    if log.complaints:
        from shoal.apps.logs_checking import broken

        raise broken(log, log.complaints[0])


@app.command()
@grouped
def verify(asked: RunLog, proof: ProofOption = None) -> None:
    """Check the store, every entry's hash, signatures and rules, and the stored blobs; or a proof."""
    from shoal.apps.logs_checking import verify_run

    log = _find(asked)
    if proof is not None:
        _verify_proof(log, proof, asked.as_json)
        return
    found = verify_run(log)
    summary = {"run": found.run, "entries": found.entries, "head": found.head, "blobs": found.blobs}
    say(summary, f"ok: {found.entries} entries, head {found.head}", asked.as_json)


@app.command()
@grouped
def replay(asked: RunLog) -> None:
    """Rebuild the model from the log and compare it with what the nodes attested."""
    from shoal.apps.logs_checking import Progress, replay_run
    from shoal.apps.progress import say as show_line

    def on_step(progress: Progress) -> None:
        if not asked.as_json:
            words = f"{progress.attested} attested" if progress.attested else "nobody attested it"
            line = f"round {progress.round}  position {progress.position}  {progress.state[:16]}  {words}"
            show_line(line, sys.stdout)

    found = replay_run(_find(asked), on_step)
    if not asked.as_json:
        print(f"folded {found.rounds} rounds from position {found.begun_at}")
    summary = {
        "run": found.run,
        "begun_at": found.begun_at,
        "rounds": found.rounds,
        "at": found.at,
        "state": found.state,
        "attested": found.attested,
    }
    last = "matches the attested one" if found.attested else "is not attested yet by anybody"
    say(summary, f"state {found.state} {last}", asked.as_json)


def _find(asked: RunLog) -> FoundLog:
    from shoal.apps.logs_reading import find_log

    return find_log(asked.home, asked.store, asked.run, node=asked.node, file=asked.file)


def _verify_proof(log: FoundLog, path: Path, as_json: bool) -> None:
    from shoal.apps.logs_checking import proven_position

    position, whose = proven_position(log, path), f"the coordinator of run {log.run[:12]}"
    holds = position is not None
    words = f"the proof holds: {whose} signed two entries for position {position}"
    say(
        {"run": log.run, "holds": holds, "position": position},
        words if holds else f"{path} proves nothing against {whose}",
        as_json,
    )
    if not holds:
        raise typer.Exit(1)
