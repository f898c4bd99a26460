"""A run's ledger, kept by its coordinator as it goes.

In flow the log at the start and what later entries are worth; out flow pages in the store and receipts for nodes.
Invariant: a ledger that does not agree with the log is left as it is and said so, once; the run goes on, and the log
decides who earned what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.credit.crediting import Crediting
from shoal.credit.ledger import Ledger
from shoal.credit.lines import Line
from shoal.credit.spec import CreditSpec
from shoal.runlog.chain import BadEntry, Link, read_link
from shoal.runlog.entries import Genesis
from shoal.runlog.view import Finding, RunView, verify_log
from shoal.strategy.recipe import recipe_in_log
from shoal.wire.identity import Identity

log = logging.getLogger(__name__)

Earned = tuple[int, str, tuple[Line, ...]]
"""The position and hash of an entry, and what it is worth."""


class Payroll:
    """One run's ledger in service."""

    def __init__(self, ledger: Ledger, run: RunId) -> None:
        self._ledger: Ledger | None = ledger
        self._run = run

    def enter(self, position: int, head: str, lines: tuple[Line, ...]) -> list[NodeId]:
        """Store the page of an entry; whose receipts are new."""
        if self._ledger is None:
            return []
        try:
            self._ledger.write(position, head, lines)
        except ShoalError as error:
            if error.code != "SH-CREDIT-01":
                raise
            log.error("ledger_not_kept", extra={"run": self._run[:12], "cause": error.cause})
            self._ledger = None
        return sorted({line.node for line in lines})

    def receipts(self, nodes: list[NodeId]) -> list[tuple[NodeId, bytes]]:
        """The last receipts of these nodes, of those who have one."""
        if self._ledger is None:
            return []
        made = [(node, self._ledger.receipt(node)) for node in nodes]
        return [(node, receipt) for node, receipt in made if receipt is not None]


class _Reader:
    """Follows a log, and remembers what its entries are worth."""

    def __init__(self, crediting: Crediting) -> None:
        self.crediting = crediting
        self.earned: list[Earned] = []

    @property
    def view(self) -> RunView:
        return self.crediting.view

    def take(self, link: Link) -> None:
        lines = self.crediting.take(link).lines
        if lines:
            self.earned.append((link.entry.position, link.hash, lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """A run's log, read once: its credit so far, and where it does not hold."""

    crediting: Crediting
    finding: Finding | None
    earned: list[Earned]
    payroll: Payroll

    def catch_up(self) -> Payroll:
        """Have the ledger agree with the log."""
        for position, head, lines in self.earned:
            self.payroll.enter(position, head, lines)
        self.earned.clear()
        return self.payroll


def open_books(
    entries: list[bytes], run: RunId, store: LogStore, identity: Identity, reached: Callable[[str], None]
) -> Books:
    """Check a run's whole log, and count what it is worth."""
    reader = _Reader(Crediting(_spec_in(entries)))
    _, finding = verify_log(entries, run, reader)
    return Books(
        crediting=reader.crediting,
        finding=finding,
        earned=reader.earned,
        payroll=Payroll(Ledger(store, run, identity, reached), run),
    )


def _spec_in(entries: list[bytes]) -> CreditSpec:
    """What the recipe says; the default where there is no genesis to read, which the check finds, too."""
    try:
        body = read_link(entries[0]).entry.body if entries else None
    except BadEntry:
        body = None
    return recipe_in_log(body.recipe).credit if isinstance(body, Genesis) else CreditSpec()
