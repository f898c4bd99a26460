"""`shoal credit show | explain | statement | verify | post | receipts | check`: who earned what in a run, and why.

In flow a run and where its log lies; out flow tables and sentences for people, JSON and CSV for tools. Invariant: every
number is recomputed from the verified log; only `post` and `receipts` write anything.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.apps.logs import FileOption, HomeOption, JsonOption, NodeOption, RunName, StoreOption

app = typer.Typer(no_args_is_help=True, help="What each node earned in a run, why, and the proof of it.")

Who = Annotated[str, typer.Argument(help="A node: its name, or the beginning of its id.")]
RunOption = Annotated[str, typer.Option("--run", help="The run's id or its beginning, if there are several.")]
COLUMNS = ("position", "round", "node", "name", "role", "units", "full_micro", "factors", "micro")


@app.command()
def show(
    run: RunName = "",
    home: HomeOption = None,
    store: StoreOption = None,
    node: NodeOption = False,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Who earned how much."""
    from shoal.apps.credit_reading import balance_fields, balance_table, read_credit

    account = read_credit(home, store, run, node=node, file=file).account
    if as_json:
        print(json.dumps(balance_fields(account)))
    else:
        print("\n".join(balance_table(account)))


@app.command()
def explain(
    who: Who,
    run: RunOption = "",
    home: HomeOption = None,
    store: StoreOption = None,
    node: NodeOption = False,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Why a node got what it got, in words."""
    from shoal.apps.credit_reading import find_node, read_credit
    from shoal.apps.printable import printable
    from shoal.credit.words import explain as in_words

    account = read_credit(home, store, run, node=node, file=file).account
    found = find_node(account, who)
    words = [printable(line, 2000) for line in in_words(account, found)]
    if as_json:
        lines = [_fields(account, line) for line in account.of(found)]
        print(json.dumps({"run": account.run, "node": found, "words": words, "lines": lines}))
    else:
        print("\n".join(words))


@app.command()
def statement(
    who: Annotated[str, typer.Argument(help="A node; all of them if left out.")] = "",
    run: RunOption = "",
    home: HomeOption = None,
    store: StoreOption = None,
    node: NodeOption = False,
    file: FileOption = None,
) -> None:
    """Every line of credit as CSV."""
    from shoal.apps.credit_reading import find_node, read_credit

    account = read_credit(home, store, run, node=node, file=file).account
    lines = account.of(find_node(account, who)) if who else account.lines
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow(_fields(account, line))


@app.command()
def verify(
    run: RunName = "",
    home: HomeOption = None,
    store: StoreOption = None,
    node: NodeOption = False,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Recompute every number from the log, and compare the stored ledger with it."""
    from shoal.apps.credit_reading import read_credit
    from shoal.credit.ledger import check_ledger
    from shoal.credit.spec import show_credits

    found = read_credit(home, store, run, node=node, file=file)
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
    _say(fields, words + (f"{pages} ledger pages agree" if pages else "no ledger is stored here"), as_json)


@app.command()
def post(
    run: RunName = "", home: HomeOption = None, store: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Bring the ledger in the coordinator's store up to the log."""
    from shoal.apps.credit_posting import post_ledger

    posted = post_ledger(home, store, run)
    fields = {"run": posted.run, "pages": posted.pages, "total_micro": posted.total_micro}
    _say(fields, f"the ledger of run {posted.run[:12]} has {posted.pages} pages", as_json)


@app.command()
def receipts(
    out: Annotated[Path, typer.Option(help="A folder; each node's receipts go to a folder of its own.")],
    run: RunName = "",
    home: HomeOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign a receipt for every round and node, for the nodes to keep."""
    from shoal.apps.credit_posting import write_receipts

    written = write_receipts(home, store, run, out)
    _say({"run": written.run, "receipts": written.count}, f"{written.count} receipts in {out}", as_json)


@app.command()
def check(
    receipt: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A receipt's file.")],
    run: RunOption = "",
    home: HomeOption = None,
    store: StoreOption = None,
    node: NodeOption = False,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Whether the coordinator signed a receipt, and the log gives what it says."""
    from shoal.apps.credit_posting import checked_receipt
    from shoal.apps.credit_reading import read_credit
    from shoal.credit.spec import show_credits

    found = read_credit(home, store, run, node=node, file=file)
    held = checked_receipt(found, receipt)
    fields = {"node": held.node, "round": held.round, "cumulative_micro": held.cumulative_micro}
    words = f"the receipt holds: {held.node[:12]} had {show_credits(held.cumulative_micro)} credits"
    _say({"run": held.run, "holds": True, **fields}, f"{words} after round {held.round}", as_json)


def _fields(account: Any, line: Any) -> dict[str, Any]:
    factors = " ".join(f"{factor.name}={factor.part}/{factor.whole}" for factor in line.factors)
    values = {name: getattr(line, name) for name in COLUMNS if name not in ("name", "factors")}
    # A spreadsheet must not take a stranger's name for a formula.
    name = account.names.get(line.node, "")
    return {**values, "name": f"'{name}" if name[:1] in ("=", "+", "-", "@") else name, "factors": factors}


def _say(fields: dict[str, Any], line: str, as_json: bool) -> None:
    print(json.dumps(fields) if as_json else line)
