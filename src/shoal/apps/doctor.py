"""`shoal doctor [TICKET]`: find out what is wrong, here or on the way to a coordinator.

In flow this machine and, where given, a ticket; out flows a line for each check with its remedy, and the first
failing hop by name. Invariant: nothing is changed and no run is joined by looking.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.apps.home import find_home
from shoal.apps.printable import printable

if TYPE_CHECKING:
    from shoal.apps.doctor_checks import Check

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    ticket: Annotated[str, typer.Argument(help="Also check every hop to this ticket's coordinator.")] = "",
    home: Annotated[Path | None, typer.Option(help="Where keys and data live (default ~/.shoal).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For tools.")] = False,
) -> None:
    """Check this machine, and with a ticket every hop to its coordinator."""
    from shoal.apps.doctor_checks import check_machine
    from shoal.apps.doctor_hops import check_hops
    from shoal.apps.progress import Bar
    from shoal.worlds.real import loop

    with Bar("checking this machine and the way to the coordinator"):
        checks = check_machine(find_home(home))
        if ticket:
            checks += loop.run(check_hops(ticket))
    failed = next((check for check in checks if check.verdict == "fail"), None)
    if as_json:
        shown = {"ok": failed is None, "first_failure": failed.fields if failed else None}
        print(json.dumps({**shown, "checks": [check.fields for check in checks]}))
    else:
        _show(checks, failed)
    if failed is not None:
        raise typer.Exit(1)


def _show(checks: list[Check], failed: Check | None) -> None:
    for check in checks:
        verdict = typer.style(f"{check.verdict:<4}", fg=_COLOURS[check.verdict])
        typer.echo(f"{verdict}  {check.name:<20}  {printable(check.found, 1000)}", color=sys.stdout.isatty())
        if check.verdict != "ok" and check.remedy:
            typer.echo(f"      {'':<20}  -> {printable(check.remedy, 1000)}")
    if failed is None:
        typer.echo("nothing stands in the way")
    else:
        typer.echo(f"first failure: {failed.name} ({failed.code}): {printable(failed.found, 1000)}")
