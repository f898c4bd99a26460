"""What everybody earned, from the ledger that the coordinator keeps.

In flow signed pages, each read once; out flow balances by node and role. Invariant: balances are the sums of the pages'
lines and of nothing else.
"""

from __future__ import annotations

from collections import Counter

from shoal.apps.api.records import CreditLine, CreditPage
from shoal.base.ids import NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.coordinator.machine import CoordinatorMachine
from shoal.credit.ledger import page_key, read_page
from shoal.credit.words import policy


class Earnings:
    """One run's balances; `catch_up` blocks, and is called by one thread at a time."""

    def __init__(self, run: RunId, public: bytes) -> None:
        self._run = run
        self._public = public
        self._sums: dict[NodeId, Counter[str]] = {}
        self._pages = 0
        self._position = 0

    def catch_up(self, store: LogStore) -> None:
        """Read the pages that were written since the last time."""
        while (
            encoded := store.kept(self._run, page_key(self._pages)).get(page_key(self._pages))
        ) is not None:
            stored = read_page(encoded, self._public)
            if stored is None:
                return  # Damaged since: `shoal credit verify` says where.
            for line in stored.page.lines:
                self._sums.setdefault(line.node, Counter())[line.role] += line.micro
            self._pages += 1
            self._position = stored.page.position

    def page(self, machine: CoordinatorMachine, names: dict[NodeId, str]) -> CreditPage:
        sums = {node: dict(roles) for node, roles in self._sums.items()}
        total = sum(sum(roles.values()) for roles in sums.values())
        lines = [
            CreditLine(
                node=node,
                name=names.get(node, "coordinator"),
                micro=sum(roles.values()),
                by_role=roles,
                share=sum(roles.values()) / total if total else 0.0,
            )
            for node, roles in sums.items()
        ]
        return CreditPage(
            run=self._run,
            position=self._position,
            unit=machine.recipe.credit.unit,
            policy=policy(machine.recipe.credit),
            total_micro=total,
            budget_micro=machine.crediting.budget_micro,
            pages=self._pages,
            nodes=sorted(lines, key=lambda line: (-line.micro, line.node)),
        )
