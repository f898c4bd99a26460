"""`shoal report RUN`: one HTML file about a run, which opens anywhere, offline.

In flow a run's status, rounds, events, checkpoints and credit; out flows one file. Invariant: it loads nothing from
anywhere and runs no script; every word in it that is somebody else's is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from shoal.apps.api.client import ApiClient, open_client
from shoal.apps.api.records import RoundRecord
from shoal.apps.home import find_home
from shoal.apps.progress import Bar, tracked
from shoal.apps.report_page import Gathered, page
from shoal.base.errors import ShoalError

ROUNDS_READ, EVENTS_READ = 20_000, 500


def report(
    run: Annotated[str, typer.Argument(help="The run's id, or a beginning of it that is its alone.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; RUN.html if left out.")] = None,
    server: Annotated[str | None, typer.Option(help="The coordinator's HTTP address.")] = None,
    token: Annotated[str | None, typer.Option(help="A token; better by file or SHOAL_TOKEN.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="A file with a token.")] = None,
    home: Annotated[Path | None, typer.Option(help="Where this machine's coordinator lies.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say what was written as JSON.")] = False,
) -> None:
    """Write a self-contained HTML report of a run."""
    with open_client(server, token, token_file, find_home(home)) as api, Bar("reading the run"):
        found = gather(api, run)
    path = out or Path(f"{found.status.run[:12]}.html")
    text = page(found)
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ShoalError(
            "SH-DISK-02", f"{path} cannot be written: {error}", "choose another with --out"
        ) from error
    if as_json:
        print(json.dumps({"run": found.status.run, "file": str(path), "bytes": len(text.encode())}))
    else:
        print(path)


def gather(api: ApiClient, run: str) -> Gathered:
    status = api.run(run)
    name = status.run
    rounds = list(islice(tracked(_rounds(api, name), "rounds", status.round), ROUNDS_READ))
    return Gathered(
        status=status,
        rounds=rounds,
        events=api.events(name, limit=EVENTS_READ).items,
        checkpoints=api.checkpoints(name),
        credit=api.credit(name),
    )


def _rounds(api: ApiClient, run: str) -> Iterator[RoundRecord]:
    """From the first on, a page at a time."""
    read = 0
    while True:
        part = api.rounds(run, start=read)
        yield from part.items
        read += len(part.items)
        if not part.items or read >= part.total:
            return
