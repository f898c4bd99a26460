"""`shoal credit show | explain | statement | verify | post | receipts | check`: who earned what in a run, and why.

In flow a run and where its log lies; out flow tables and sentences for people, JSON and CSV for tools. Invariant: every
number is recomputed from the verified log; only `post` and `receipts` write anything.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.apps.option_groups import (
    JsonOption,
    LogPlace,
    RunLog,
    RunName,
    RunOption,
    StorePlace,
    grouped,
    say,
)

if TYPE_CHECKING:
    from shoal.apps.credit_reading import FoundCredit

app = typer.Typer(no_args_is_help=True, help="What each node earned in a run, why, and the proof of it.")

Who = Annotated[str, typer.Argument(help="A node: its name, or the beginning of its id.")]
COLUMNS = ("position", "round", "node", "name", "role", "units", "full_micro", "factors", "micro")


@app.command()
@grouped
def show(asked: RunLog) -> None:
    """Who earned how much."""
    from shoal.apps.credit_reading import balance_fields, balance_table

    account = _found(asked, asked.run).account
    say(balance_fields(account), "\n".join(balance_table(account)), asked.as_json)


@app.command()
@grouped
def explain(
    who: Who,
    place: LogPlace,
    run: RunOption = "",
    as_json: JsonOption = False,
) -> None:
    """Why a node got what it got, in words."""
    from shoal.apps.credit_reading import find_node
    from shoal.apps.printable import printable
    from shoal.credit.words import explain as in_words

    account = _found(place, run).account
    found = find_node(account, who)
    words = [printable(line, 2000) for line in in_words(account, found)]
    lines = [_fields(account, line) for line in account.of(found)]
    fields = {"run": account.run, "node": found, "words": words, "lines": lines}
    say(fields, "\n".join(words), as_json)


@app.command()
@grouped
def statement(
    place: LogPlace,
    who: Annotated[str, typer.Argument(help="A node; all of them if left out.")] = "",
    run: RunOption = "",
    as_json: JsonOption = False,
) -> None:
    """Every line of credit as CSV, or as JSON."""
    from shoal.apps.credit_reading import find_node

    account = _found(place, run).account
    lines = account.of(find_node(account, who)) if who else account.lines
    if as_json:
        rows = [_fields(account, line) for line in lines]
        print(json.dumps({"run": account.run, "lines": rows}))
        return
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow(_fields(account, line))


@app.command()
@grouped
def verify(asked: RunLog) -> None:
    """Recompute every number from the log, and compare the stored ledger with it."""
    from shoal.credit.ledger import check_ledger
    from shoal.credit.spec import show_credits

    found = _found(asked, asked.run)
    account = found.account
    pages = check_ledger(found.pages, account.run, found.coordinator, account.lines)
    fields = {
        "run": account.run,
        "entries": account.length,
        "head": account.head,
        "lines": len(account.lines),
        "pages": pages,
        "total_micro": account.total_micro,
        "balances": account.balances,
    }
    total = show_credits(account.total_micro)
    words = f"ok: {total} credits in {len(account.lines)} lines from {account.length} entries; "
    say(
        fields,
        words + (f"{pages} ledger pages agree" if pages else "no ledger is stored here"),
        asked.as_json,
    )


@app.command()
@grouped
def post(place: StorePlace, run: RunName = "", as_json: JsonOption = False) -> None:
    """Bring the ledger in the coordinator's store up to the log."""
    from shoal.apps.credit_posting import post_ledger

    posted = post_ledger(place.home, place.store, run)
    fields = {"run": posted.run, "pages": posted.pages, "total_micro": posted.total_micro}
    say(fields, f"the ledger of run {posted.run[:12]} has {posted.pages} pages", as_json)


@app.command()
@grouped
def receipts(
    out: Annotated[Path, typer.Option(help="A folder; each node's receipts go to a folder of its own.")],
    place: StorePlace,
    run: RunName = "",
    as_json: JsonOption = False,
) -> None:
    """Sign a receipt for every round and node, for the nodes to keep."""
    from shoal.apps.credit_posting import write_receipts

    written = write_receipts(place.home, place.store, run, out)
    say({"run": written.run, "receipts": written.count}, f"{written.count} receipts in {out}", as_json)


@app.command()
@grouped
def check(
    place: LogPlace,
    receipt: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, help="A receipt's file; this node's last if left out."),
    ] = None,
    run: RunOption = "",
    as_json: JsonOption = False,
) -> None:
    """Whether the coordinator signed a receipt, and the log gives what it says."""
    from shoal.apps.credit_posting import checked_receipt, last_receipt
    from shoal.credit.spec import show_credits

    found = _found(place, run)
    held = checked_receipt(found, receipt or last_receipt(place.home, found.account.run))
    fields = {"node": held.node, "round": held.round, "cumulative_micro": held.cumulative_micro}
    words = f"the receipt holds: {held.node[:12]} had {show_credits(held.cumulative_micro)} credits"
    say({"run": held.run, "holds": True, **fields}, f"{words} after round {held.round}", as_json)


def _found(place: LogPlace, run: str) -> FoundCredit:
    from shoal.apps.credit_reading import read_credit

    return read_credit(place.home, place.store, run, node=place.node, file=place.file)


def _fields(account: Any, line: Any) -> dict[str, Any]:
    factors = " ".join(f"{factor.name}={factor.part}/{factor.whole}" for factor in line.factors)
    values = {name: getattr(line, name) for name in COLUMNS if name not in ("name", "factors")}
    # A spreadsheet must not take a stranger's name for a formula.
    name = account.names.get(line.node, "")
    return {**values, "name": f"'{name}" if name[:1] in ("=", "+", "-", "@") else name, "factors": factors}
