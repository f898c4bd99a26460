"""`shoal top`: runs and nodes as they are now, in a terminal.

In flow a coordinator's answers, every second; out flows a screen that fits the terminal, plain lines in a pipe, or one
JSON value. Invariant: what does not fit is left out and counted, never wrapped; a coordinator that does not answer is
said so and asked again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from shoal.apps.api.client import ApiClient, as_sent, open_client
from shoal.apps.api.models import RunStatus, RunSummary
from shoal.apps.home import find_home
from shoal.base.errors import ShoalError


class Seen(NamedTuple):
    """Every run in brief, and one of them whole."""

    runs: list[RunSummary]
    run: RunStatus | None


def top(
    run: Annotated[str, typer.Argument(help="The run to show; the first that is on if left out.")] = "",
    server: Annotated[str | None, typer.Option(help="The coordinator's HTTP address.")] = None,
    token: Annotated[str | None, typer.Option(help="A token; better by file or SHOAL_TOKEN.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="A file with a token.")] = None,
    home: Annotated[Path | None, typer.Option(help="Where this machine's coordinator lies.")] = None,
    every: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value, once.")] = False,
) -> None:
    """Runs and nodes, live, like htop. Ctrl-C ends it."""
    with open_client(server, token, token_file, find_home(home)) as api:
        if as_json:
            print(json.dumps(_look(api, run)._asdict(), default=as_sent))
        elif once or not sys.stdout.isatty():
            _print_plain(_look(api, run))
        else:
            _follow(api, run, every)


def _look(api: ApiClient, run: str) -> Seen:
    runs = api.runs()
    on = [item.run for item in runs if item.stopped is None]
    chosen = run or next(iter(on), None) or next((item.run for item in runs), "")
    return Seen(runs, api.run(chosen) if chosen else None)


def _print_plain(seen: Seen) -> None:
    from shoal.apps.top_screen import plain_lines

    for line in plain_lines(seen):
        print(line)


def _follow(api: ApiClient, run: str, every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from shoal.apps.top_screen import trouble, whole_screen

    console = Console()
    seen: Seen = _look(api, run)  # A wrong token or address is an error, not a screen.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(whole_screen(seen, console.width, console.height), refresh=True)
            time.sleep(every)
            try:
                seen = _look(api, run)
            except ShoalError as error:
                live.update(trouble(error, console.width), refresh=True)
                time.sleep(every)
