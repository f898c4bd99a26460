"""`shoal run`: submit, list, show, stop, rewind, fund, export, ticket.

In flow command lines; out flow tables for people or, with --json, one JSON value on stdout. Invariant: what
is long says so on stderr; stdout holds the answer alone.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.apps.home import find_home
from shoal.apps.join import quantity
from shoal.apps.printable import printable
from shoal.base.units import duration_s

if TYPE_CHECKING:
    from shoal.apps.api.client import ApiClient

app = typer.Typer(help="Submit, watch, stop and export runs.", no_args_is_help=True)

RunName = Annotated[str, typer.Argument(help="The run's id, or the first letters that tell it apart.")]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON value.")]
Server = Annotated[
    str | None, typer.Option(help="The coordinator's API; default: $SHOAL_SERVER, else this machine's.")
]
Token = Annotated[str | None, typer.Option(help="Its admin token; default: $SHOAL_TOKEN.")]
TokenFile = Annotated[Path | None, typer.Option(help="A file with the token; default: this machine's.")]
HomeOption = Annotated[Path | None, typer.Option("--home", help="Where a local coordinator's things lie.")]


@app.command()
def submit(
    recipe: Annotated[str, typer.Argument(help="A YAML file, or a shipped recipe: stdlib-gpt, digits.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a field; may be repeated.")
    ] = None,
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """Start a run of a recipe. Paths in it are the coordinator's."""
    from shoal.apps.recipes import find_recipe
    from shoal.strategy.recipe import load_recipe

    loaded = load_recipe(find_recipe(recipe), overrides=settings or ())
    with _client(server, token, token_file, home) as api, _busy(f"preparing {loaded.name}"):
        answer = api.submit(loaded.model_dump_json())
    if as_json:
        _print_json(answer)
        return
    print(f"run {printable(str(answer['run']))}")
    print(f"shoal join {printable(str(answer['ticket']), 2000)}")


@app.command("list")
def list_runs(
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """Every run of a coordinator."""
    with _client(server, token, token_file, home) as api:
        runs = api.runs()
    if as_json:
        _print_json(runs)
    elif runs:
        from shoal.apps.run_tables import print_runs

        print_runs(runs)
    else:
        print("no runs yet: shoal run submit stdlib-gpt")


@app.command()
def show(
    run: RunName,
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """One run: where it stands, its nodes and its losses."""
    with _client(server, token, token_file, home) as api:
        found = api.run(run)
    if as_json:
        _print_json(found)
        return
    from shoal.apps.run_tables import print_run

    print_run(found)


@app.command()
def stop(
    run: RunName,
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")] = "stopped by the organiser",
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """End a run. Its nodes save the last state and leave."""
    with _client(server, token, token_file, home) as api:
        answer = api.stop(run, reason)
    _answer(answer, f"run {answer['run']} stopped: {answer['stopped']}", as_json)


@app.command()
def pause(
    run: RunName,
    reason: Annotated[
        str, typer.Option(help="Why; everybody who looks sees it.")
    ] = "paused by the organiser",
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """Give out no new work until `resume`. Work that is out still counts."""
    with _client(server, token, token_file, home) as api:
        answer = api.pause(run, reason)
    _answer(answer, f"run {answer['run']} is paused: {answer['paused']}", as_json)


@app.command()
def resume(
    run: RunName,
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """Go on after a pause."""
    with _client(server, token, token_file, home) as api:
        answer = api.resume(run)
    _answer(answer, f"run {answer['run']} goes on", as_json)


@app.command()
def change(
    run: RunName,
    settings: Annotated[list[str], typer.Argument(metavar="A.B=C...", help="As budget.rounds=80.")],
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """Change what may be changed while a run is on; its nodes connect again."""
    import yaml

    pairs = [setting.partition("=") for setting in settings]
    changes = {path: yaml.safe_load(value) for path, _, value in pairs}
    with _client(server, token, token_file, home) as api:
        answer = api.change(run, changes)
    _answer(answer, ", ".join(f"{k} = {v}" for k, v in answer["parameters"].items()), as_json)


@app.command()
def rewind(
    run: RunName,
    to: Annotated[int, typer.Option(help="Position of an earlier seal, or 0 for the beginning.", min=0)],
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")],
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """Undo a bad stretch: the run goes on from an earlier state."""
    with _client(server, token, token_file, home) as api:
        answer = api.rewind(run, to, reason)
    _answer(answer, f"run {answer['run']} goes on from position {to}", as_json)


@app.command()
def fund(
    run: RunName,
    amount: Annotated[str, typer.Argument(help="Credits to add to its budget, e.g. 12.5.")],
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")] = "raised by the organiser",
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """Raise a run's budget; one that paused for want of it goes on."""
    from shoal.credit.spec import read_credits, show_credits

    add_micro = quantity("AMOUNT", amount, read_credits) or 0
    with _client(server, token, token_file, home) as api:
        answer = api.fund(run, add_micro, reason)
    _answer(answer, f"run {answer['run']} may earn {show_credits(add_micro)} credits more", as_json)


@app.command()
def ban(
    run: RunName,
    node: Annotated[str, typer.Argument(help="Its name, its id, or the beginning of that.")],
    how_long: Annotated[str, typer.Option("--for", help="For so long: 1h, 7d.")] = "1d",
    reason: Annotated[str, typer.Option(help="Why; the node is told, and it goes into the log.")] = (
        "banned by the organiser"
    ),
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """Keep a node out of a run for a while. What it did so far stands."""
    seconds = quantity("--for", how_long, duration_s) or 0.0
    with _client(server, token, token_file, home) as api:
        answer = api.ban(run, node, seconds, reason)
    _answer(answer, f"node {answer['node']} is banned for {how_long}: {answer['reason']}", as_json)


@app.command()
def unban(
    run: RunName,
    node: Annotated[str, typer.Argument(help="Its name, its id, or the beginning of that.")],
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")] = "lifted by the organiser",
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """Let a banned node in again."""
    with _client(server, token, token_file, home) as api:
        answer = api.ban(run, node, 0.0, reason)
    _answer(answer, f"node {answer['node']} may join again", as_json)


@app.command()
def ticket(
    run: RunName,
    expires: Annotated[str | None, typer.Option(help="Admits nodes for so long: 12h, 7d.")] = None,
    uses: Annotated[int | None, typer.Option(min=1, help="Admits so many new nodes.")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--node", help="Admits this node, by its id (repeatable).")
    ] = None,
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """Another ticket for a run."""
    with _client(server, token, token_file, home) as api:
        answer = api.ticket(run, _duration(expires), uses, tuple(only or ()))
    _answer(answer, f"shoal join {answer['ticket']}", as_json)


@app.command()
def export(
    run: RunName,
    folder: Annotated[Path, typer.Argument(help="Where the model goes; made if needed.")],
    server: Server = None,
    token: Token = None,
    token_file: TokenFile = None,
    home: HomeOption = None,
    as_json: Json = False,
) -> None:
    """Write the run's last saved state as a folder.

    A language model (kind gpt or transformers) loads with plain `transformers`. Any other is safetensors with a
    description, and loads with this package. The README in the folder says how.
    """
    from shoal.apps.exporting import export_run

    with _client(server, token, token_file, home) as api, _busy("fetching and checking the run"):
        exported = export_run(api, run, folder)
    stage = "final" if exported.final else f"after {exported.rounds} of {exported.rounds_sealed} rounds"
    text = f"{folder}: {exported.name}, {stage}, state {exported.state[:16]} as in the log"
    text += f"; loads with {exported.loads_with}"
    _answer(exported.as_json(), text, as_json)


def _client(server: str | None, token: str | None, token_file: Path | None, home: Path | None) -> ApiClient:
    from shoal.apps.api.client import open_client

    return open_client(server, token, token_file, find_home(home))


def _duration(text: str | None) -> float | None:
    try:
        return None if text is None else duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--expires") from None


@contextlib.contextmanager
def _busy(what: str) -> Iterator[None]:
    """Show on stderr that something takes its time."""
    if not sys.stderr.isatty():
        print(f"{what} ...", file=sys.stderr, flush=True)
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def _answer(value: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        _print_json(value)
    else:
        print(printable(text, 2000))


def _print_json(value: Any) -> None:
    print(json.dumps(value))
