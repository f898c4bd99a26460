"""A whole run's credit: every line, added up by node.

In flow a log's entries; out flow balances, statements and what happened beside them. Invariant: balances are the sums
of lines and of nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.base.ids import NodeId, RunId
from shoal.credit.crediting import Crediting
from shoal.credit.lines import Line, Remark
from shoal.credit.spec import CreditSpec
from shoal.runlog.chain import read_link


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What everybody earned, up to the log's head."""

    run: RunId
    spec: CreditSpec
    length: int
    head: str
    names: dict[NodeId, str]
    lines: tuple[Line, ...]
    remarks: tuple[Remark, ...]
    balances: dict[NodeId, int] = field(default_factory=dict)
    funded_micro: int = 0
    """What was added to the recipe's budget."""

    @property
    def total_micro(self) -> int:
        return sum(self.balances.values())

    def of(self, node: NodeId) -> list[Line]:
        return [line for line in self.lines if line.node == node]

    def remarks_on(self, node: NodeId) -> list[Remark]:
        return [remark for remark in self.remarks if remark.node == node]


def account_of(entries: Iterable[bytes], spec: CreditSpec) -> Account:
    """Recompute everything. Raises `BadEntry` at the first entry that does not hold."""
    crediting = Crediting(spec)
    lines: list[Line] = []
    remarks: list[Remark] = []
    for encoded in entries:
        credited = crediting.take(read_link(encoded))
        lines += credited.lines
        remarks += credited.remarks
    view = crediting.view
    return Account(
        run=view.run,
        spec=spec,
        length=view.length,
        head=view.head.hash,
        names={node: member.name for node, member in sorted(view.members.items())},
        lines=tuple(lines),
        remarks=tuple(remarks),
        balances=balances_of(lines),
        funded_micro=view.funded_micro,
    )


def balances_of(lines: Iterable[Line]) -> dict[NodeId, int]:
    """What each node has, in the order of their ids."""
    sums: dict[NodeId, int] = {}
    for line in lines:
        sums[line.node] = sums.get(line.node, 0) + line.micro
    return dict(sorted(sums.items()))
