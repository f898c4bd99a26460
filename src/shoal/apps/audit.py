"""`shoal audit list | show | check`: which claims were run again by others, what they found, and whether it holds.

In flow a run and where its log lies; out flow tables for people, JSON for tools. Invariant: everything is read from the
verified log; `check` takes nobody's word and runs the evidence again.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from shoal.apps.option_groups import JsonOption, LogPlace, RunName, RunOption, grouped

app = typer.Typer(no_args_is_help=True, help="What audits found, and the evidence run again.")

Number = Annotated[int, typer.Argument(help="The case's number in `shoal audit list`.", min=1)]


@app.command("list")
@grouped
def list_cases(
    place: LogPlace,
    run: RunName = "",
    as_json: JsonOption = False,
) -> None:
    """Every claim that was drawn, and every member's standing."""
    from shoal.apps.audit_reading import case_fields, case_lines, read_docket, standing_fields

    found = read_docket(place.home, place.store, run, node=place.node, file=place.file)
    if as_json:
        cases = [case_fields(found, number) for number in range(1, len(found.cases) + 1)]
        print(json.dumps({"run": found.view.run, "cases": cases, "members": standing_fields(found)}))
    else:
        print("\n".join(case_lines(found)))


@app.command()
@grouped
def show(
    number: Number,
    place: LogPlace,
    run: RunOption = "",
    as_json: JsonOption = False,
) -> None:
    """One case: the claim, who judged it, and what each found."""
    from shoal.apps.audit_reading import case_fields, case_words, read_docket

    found = read_docket(place.home, place.store, run, node=place.node, file=place.file)
    if as_json:
        print(json.dumps(case_fields(found, number)))
    else:
        print("\n".join(case_words(found, number)))


@app.command()
@grouped
def check(
    place: LogPlace,
    run: RunName = "",
    case: Annotated[int, typer.Option(help="Only this case; all convictions if left out.", min=0)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run the evidence of verdicts again, on this machine. Status 1 if a conviction does not hold."""
    from shoal.apps.audit_checking import check_cases
    from shoal.apps.audit_reading import read_docket

    found = read_docket(place.home, place.store, run, node=place.node, file=place.file)
    checked = check_cases(found, case)
    if as_json:
        print(json.dumps({"run": found.view.run, "checked": [one.fields for one in checked]}))
    else:
        print("\n".join(map(str, checked)) or "nobody was convicted: there is nothing to check")
    if any(one.holds is False for one in checked):
        raise typer.Exit(1)
