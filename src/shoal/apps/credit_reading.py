"""A run's credit, from its log as it lies on this machine.

In flow a home, a store or a log file; out flow the account and the ledger that is stored beside the log. Invariant:
nothing is written, and no number is taken from anywhere but the verified log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.apps.home import find_home
from shoal.apps.logs_checking import verified_view
from shoal.apps.logs_reading import FoundLog, find_log
from shoal.apps.printable import printable
from shoal.apps.progress import tracked
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId
from shoal.credit.account import Account, account_of
from shoal.credit.ledger import PREFIX
from shoal.credit.lines import ROLES
from shoal.credit.spec import show_credits
from shoal.credit.words import policy
from shoal.strategy.recipe import recipe_in_log
from shoal.wire.hybrid import PUBLIC_BYTES
from shoal.worlds.real.sqlstore import SqlLogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCredit:
    account: Account
    coordinator: bytes
    """Its public key."""
    hashes: tuple[str, ...]
    """Of the log's entries."""
    pages: tuple[bytes, ...]
    """The stored ledger; () where there is none."""


def read_credit(
    home: Path | None, store: str | None, run: str, *, node: bool, file: Path | None = None
) -> FoundCredit:
    """Raises SH-API-02, SH-LOG-01 or SH-LOG-04."""
    log = find_log(home, store, run, node=node, file=file)
    pages: tuple[bytes, ...] = ()
    if log.complete:
        with closing(SqlLogStore(store or find_home(home).store_url, create=False)) as opened:
            pages = tuple(page for _, page in sorted(opened.kept(log.run, PREFIX).items()))
    return credit_in(log, pages)


def credit_in(log: FoundLog, pages: tuple[bytes, ...] = ()) -> FoundCredit:
    """The credit of a log that was found. Raises SH-LOG-01."""
    view = verified_view(log)
    assert view.genesis is not None
    spec = recipe_in_log(view.genesis.recipe).credit
    return FoundCredit(
        account=account_of(tracked(log.entries, "entries"), spec),
        coordinator=view.genesis.coordinator[:PUBLIC_BYTES],
        hashes=tuple(view.hashes),
        pages=pages,
    )


def find_node(account: Account, who: str) -> NodeId:
    """The one node of this name, or whose id begins so. Raises SH-CREDIT-02."""
    known = sorted({*account.names, *account.balances})
    by_name = [node for node in known if account.names.get(node) == who]
    found = by_name if len(by_name) == 1 else [node for node in known if node.startswith(who)]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(f"{printable(account.names.get(node, ''))} {node[:12]}".strip() for node in known[:20])
    what = f"{len(found)} nodes" if found else "no node"
    raise ShoalError(
        "SH-CREDIT-02",
        f"{what} of run {account.run[:12]} with the name {printable(who)!r}, or an id that begins so",
        f"name one of: {shown}",
    )


def balance_fields(account: Account) -> dict[str, Any]:
    return {
        "run": account.run,
        "entries": account.length,
        "head": account.head,
        "unit": account.spec.unit,
        "total_micro": account.total_micro,
        "nodes": [
            {
                "node": node,
                "name": account.names.get(node, ""),
                "micro": micro,
                **{f"{role}_micro": _in_role(account, node, role) for role in ROLES},
            }
            for node, micro in account.balances.items()
        ],
    }


def balance_table(account: Account) -> Iterator[str]:
    """For people: the largest balance first."""
    yield f"run {account.run[:12]}: {policy(account.spec, account.funded_micro)}"
    yield f"{'node':<28} {'credits':>16} " + " ".join(f"{role:>14}" for role in ROLES)
    for node, micro in sorted(account.balances.items(), key=lambda item: (-item[1], item[0])):
        name = printable(account.names.get(node, "coordinator"), 15)
        parts = " ".join(f"{show_credits(_in_role(account, node, role)):>14}" for role in ROLES)
        yield f"{name:<15} {node[:12]} {show_credits(micro):>16} {parts}"
    yield f"{'all':<28} {show_credits(account.total_micro):>16}"


def _in_role(account: Account, node: NodeId, role: str) -> int:
    return sum(line.micro for line in account.of(node) if line.role == role)
