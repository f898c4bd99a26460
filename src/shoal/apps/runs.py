"""`shoal run`: submit, list, show, stop, rewind, fund, export, ticket.

In flow command lines; out flow tables for people or, with --json, one JSON value on stdout. Invariant: what
is long says so on stderr; stdout holds the answer alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.apps.home import find_home
from shoal.apps.join import quantity
from shoal.apps.option_groups import grouped
from shoal.apps.printable import printable
from shoal.base.errors import ShoalError
from shoal.base.units import duration_s

if TYPE_CHECKING:
    from shoal.apps.api.client import ApiClient

app = typer.Typer(help="Submit, watch, stop and export runs.", no_args_is_help=True)

RunName = Annotated[str, typer.Argument(help="The run's id, or the first letters that tell it apart.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which coordinator is asked, as whom, and how the answer is to be given."""

    server: Annotated[
        str | None, typer.Option(help="The coordinator's API; default: $SHOAL_SERVER, else this machine's.")
    ] = None
    token: Annotated[str | None, typer.Option(help="Its admin token; default: $SHOAL_TOKEN.")] = None
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token; default: this machine's.")
    ] = None
    home: Annotated[Path | None, typer.Option("--home", help="Where a local coordinator's things lie.")] = (
        None
    )
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON value.")] = False

    def client(self) -> ApiClient:
        from shoal.apps.api.client import open_client

        return open_client(self.server, self.token, self.token_file, find_home(self.home))


@app.command()
@grouped
def submit(
    recipe: Annotated[str, typer.Argument(help="A YAML file, or a shipped recipe: stdlib-gpt, digits.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a field; may be repeated.")
    ] = None,
    *,
    there: Asked,
) -> None:
    """Start a run of a recipe. Paths in it are the coordinator's."""
    from shoal.apps.progress import Bar
    from shoal.apps.recipes import find_recipe
    from shoal.strategy.recipe import load_recipe

    loaded = load_recipe(find_recipe(recipe), overrides=settings or ())
    with there.client() as api, Bar(f"the coordinator prepares {printable(loaded.name)}"):
        answer = api.submit(loaded.model_dump_json())
    if there.as_json:
        _print_json(answer)
        return
    print(f"run {printable(answer.run)}")
    print(f"shoal join {printable(answer.ticket, 2000)}")


@app.command("list")
@grouped
def list_runs(
    there: Asked,
) -> None:
    """Every run of a coordinator."""
    with there.client() as api:
        runs = api.runs()
    if there.as_json:
        _print_json(runs)
    elif runs:
        from shoal.apps.run_tables import print_runs

        print_runs(runs)
    else:
        print("no runs yet: shoal run submit stdlib-gpt")


@app.command()
@grouped
def show(
    run: RunName,
    there: Asked,
) -> None:
    """One run: where it stands, its nodes and its losses."""
    with there.client() as api:
        found = api.run(run)
    if there.as_json:
        _print_json(found)
        return
    from shoal.apps.run_tables import print_run

    print_run(found)


@app.command()
@grouped
def stop(
    run: RunName,
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")] = "stopped by the organiser",
    *,
    there: Asked,
) -> None:
    """End a run. Its nodes save the last state and leave."""
    with there.client() as api:
        answer = api.stop(run, reason)
    _answer(answer, f"run {answer.run} stopped: {answer.stopped}", there.as_json)


@app.command()
@grouped
def pause(
    run: RunName,
    reason: Annotated[
        str, typer.Option(help="Why; everybody who looks sees it.")
    ] = "paused by the organiser",
    *,
    there: Asked,
) -> None:
    """Give out no new work until `resume`. Work that is out still counts."""
    with there.client() as api:
        answer = api.pause(run, reason)
    _answer(answer, f"run {answer.run} is paused: {answer.paused}", there.as_json)


@app.command()
@grouped
def resume(
    run: RunName,
    there: Asked,
) -> None:
    """Go on after a pause."""
    with there.client() as api:
        answer = api.resume(run)
    _answer(answer, f"run {answer.run} goes on", there.as_json)


@app.command()
@grouped
def change(
    run: RunName,
    settings: Annotated[list[str], typer.Argument(metavar="A.B=C...", help="As budget.rounds=80.")],
    there: Asked,
) -> None:
    """Change what may be changed while a run is on; its nodes connect again."""
    changes = dict(map(_parsed_change, settings))
    with there.client() as api:
        answer = api.change(run, changes)
    _answer(answer, ", ".join(f"{k} = {v}" for k, v in answer.parameters.items()), there.as_json)


def _parsed_change(setting: str) -> tuple[str, Any]:
    """A field's path and its new value. Raises SH-RECIPE-01 or -02."""
    from shoal.strategy.reading import read_yaml

    path, equals, text = setting.partition("=")
    if not equals or not path:
        raise ShoalError(
            "SH-RECIPE-02",
            f"{setting!r} is not of the form a.b=c",
            "e.g. shoal run change RUN budget.rounds=80",
        )
    return path, read_yaml(text, path)


@app.command()
@grouped
def rewind(
    run: RunName,
    to: Annotated[
        int, typer.Option(help="Position of an earlier seal that is kept; 0 is the beginning.", min=0)
    ],
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")],
    there: Asked,
) -> None:
    """Undo a bad stretch: the run goes on from an earlier state."""
    with there.client() as api:
        answer = api.rewind(run, to, reason)
    _answer(answer, f"run {answer.run} goes on from position {to}", there.as_json)


@app.command()
@grouped
def fund(
    run: RunName,
    amount: Annotated[str, typer.Argument(help="Credits to add to its budget, e.g. 12.5.")],
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")] = "raised by the organiser",
    *,
    there: Asked,
) -> None:
    """Raise a run's budget; one that paused for want of it goes on."""
    from shoal.credit.spec import read_credits, show_credits

    add_micro = quantity("AMOUNT", amount, read_credits) or 0
    with there.client() as api:
        answer = api.fund(run, add_micro, reason)
    _answer(answer, f"run {answer.run} may earn {show_credits(add_micro)} credits more", there.as_json)


@app.command()
@grouped
def ban(
    run: RunName,
    node: Annotated[str, typer.Argument(help="Its name, its id, or the beginning of that.")],
    how_long: Annotated[str, typer.Option("--for", help="For so long: 1h, 7d.")] = "1d",
    reason: Annotated[str, typer.Option(help="Why; the node is told, and it goes into the log.")] = (
        "banned by the organiser"
    ),
    *,
    there: Asked,
) -> None:
    """Keep a node out of a run for a while. What it did so far stands."""
    seconds = quantity("--for", how_long, duration_s) or 0.0
    with there.client() as api:
        answer = api.ban(run, node, seconds, reason)
    _answer(answer, f"node {answer.node} is banned for {how_long}: {answer.reason}", there.as_json)


@app.command()
@grouped
def unban(
    run: RunName,
    node: Annotated[str, typer.Argument(help="Its name, its id, or the beginning of that.")],
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")] = "lifted by the organiser",
    *,
    there: Asked,
) -> None:
    """Let a banned node in again."""
    with there.client() as api:
        answer = api.ban(run, node, 0.0, reason)
    _answer(answer, f"node {answer.node} may join again", there.as_json)


@app.command()
@grouped
def ticket(
    run: RunName,
    expires: Annotated[str | None, typer.Option(help="Admits nodes for so long: 12h, 7d.")] = None,
    uses: Annotated[int | None, typer.Option(min=1, help="Admits so many new nodes.")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--node", help="Admits this node, by its id (repeatable).")
    ] = None,
    *,
    there: Asked,
) -> None:
    """Another ticket for a run."""
    with there.client() as api:
        answer = api.ticket(run, _duration(expires), uses, tuple(only or ()))
    _answer(answer, f"shoal join {answer.ticket}", there.as_json)


def _named(text: str) -> Path:
    """The path, if it is one: nothing, which a variable without a value is, would be the folder that one is in."""
    if not text:
        raise typer.BadParameter("it is empty, and names no folder; `.` is the one that you are in")
    return Path(text)


@app.command()
@grouped
def export(
    run: RunName,
    folder: Annotated[
        Path, typer.Argument(parser=_named, metavar="folder", help="Where the model goes; made if needed.")
    ],
    there: Asked,
) -> None:
    """Write the run's last saved state as a folder.

    A language model (kind gpt or transformers) loads with plain `transformers`. Any other is safetensors with a
    description, and loads with this package. The README in the folder says how.
    """
    from shoal.apps.exporting import export_run
    from shoal.apps.progress import Bar

    with there.client() as api, Bar("fetching, checking and writing the run"):
        exported = export_run(api, run, folder)
    stage = "final" if exported.final else f"after {exported.rounds} of {exported.rounds_sealed} rounds"
    text = f"{folder}: {exported.name}, {stage}, state {exported.state[:16]} as in the log"
    text += f"; loads with {exported.loads_with}"
    _answer(exported.as_json(), text, there.as_json)


def _duration(text: str | None) -> float | None:
    try:
        return None if text is None else duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--expires") from None


def _answer(value: Any, text: str, as_json: bool) -> None:
    if as_json:
        _print_json(value)
    else:
        print(printable(text, 2000))


def _print_json(value: Any) -> None:
    from shoal.apps.api.client import as_sent

    print(json.dumps(value, default=as_sent))
