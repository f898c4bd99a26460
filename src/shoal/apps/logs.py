"""`shoal log show | verify | replay`: a run's log, read without changing anything.

In flow a run and where its log lies; out flow lines for people or one JSON object for tools. Invariant: nothing
is written, so that a damaged store can be looked at as often as one likes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal.apps.logs_reading import FoundLog

app = typer.Typer(no_args_is_help=True, help="A run's log: read it, check it, rebuild the model from it.")

RunName = Annotated[
    str, typer.Argument(help="The run's id or its beginning; may be left out if there is one.")
]
HomeOption = Annotated[Path | None, typer.Option("--home", help="Where things live (default ~/.shoal).")]
StoreOption = Annotated[str | None, typer.Option("--store", help="sqlite:///PATH or postgresql://...")]
NodeOption = Annotated[bool, typer.Option("--node", help="A node's copy instead of the coordinator's.")]
FileOption = Annotated[Path | None, typer.Option("--file", help="A node's log file, .../logs/RUN.log.")]
ProofOption = Annotated[
    Path | None,
    typer.Option("--proof", exists=True, dir_okay=False, help="A node's proof-RUN.msgpack: does it hold?"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For tools.")]


@app.command()
def show(
    run: RunName = "",
    home: HomeOption = None,
    store: StoreOption = None,
    node: NodeOption = False,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """The entries, one line each."""
    from shoal.apps.logs_reading import find_log, lines_of

    log = find_log(home, store, run, node=node, file=file)
    for line in lines_of(log.entries):
        print(json.dumps(line.fields) if as_json else str(line))


@app.command()
def verify(
    run: RunName = "",
    home: HomeOption = None,
    store: StoreOption = None,
    node: NodeOption = False,
    file: FileOption = None,
    proof: ProofOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the store, every entry's hash, signatures and rules, and the stored blobs; or a proof."""
    from shoal.apps.logs_checking import verify_run
    from shoal.apps.logs_reading import find_log

    log = find_log(home, store, run, node=node, file=file)
    if proof is not None:
        _verify_proof(log, proof, as_json)
        return
    found = verify_run(log)
    summary = {"run": found.run, "entries": found.entries, "head": found.head, "blobs": found.blobs}
    _say(summary, f"ok: {found.entries} entries, head {found.head}", as_json)


@app.command()
def replay(
    run: RunName = "",
    home: HomeOption = None,
    store: StoreOption = None,
    node: NodeOption = False,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the model from the log and compare it with what the nodes attested."""
    from shoal.apps.logs_checking import Progress, replay_run
    from shoal.apps.logs_reading import find_log

    def on_step(progress: Progress) -> None:
        if not as_json:
            words = f"{progress.attested} attested" if progress.attested else "nobody attested it"
            print(f"round {progress.round}  position {progress.position}  {progress.state[:16]}  {words}")

    found = replay_run(find_log(home, store, run, node=node, file=file), on_step)
    if not as_json:
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
    _say(summary, f"state {found.state} {last}", as_json)


def _verify_proof(log: FoundLog, path: Path, as_json: bool) -> None:
    from shoal.apps.logs_checking import proven_position

    position, whose = proven_position(log, path), f"the coordinator of run {log.run[:12]}"
    holds = position is not None
    words = f"the proof holds: {whose} signed two entries for position {position}"
    _say(
        {"run": log.run, "holds": holds, "position": position},
        words if holds else f"{path} proves nothing against {whose}",
        as_json,
    )
    if not holds:
        raise typer.Exit(1)


def _say(fields: dict[str, Any], line: str, as_json: bool) -> None:
    print(json.dumps(fields) if as_json else line)
