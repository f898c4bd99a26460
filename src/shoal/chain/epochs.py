"""From pages of the ledger to epochs on the chain.

In flow pages, addresses and the price of a credit; out flow records: what every address has earned up to an epoch.
Invariant: which pages an epoch ends with is a function of the log alone, and a record that was stored is never made
again, so that its root is the same whenever it is computed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.base.ids import NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.chain.config import JobTerms
from shoal.chain.merkle import Tree, make_tree
from shoal.credit.account import balances_of
from shoal.credit.ledger import StoredPage

KEY = "epoch."


@dataclass(frozen=True, slots=True)
class Boundary:
    """The state of everybody's credit at the end of an epoch."""

    epoch: int
    position: int
    head: str
    cumulative: Mapping[NodeId, int]


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a root is made of: published, so that anyone can check it against the log and claim."""

    run: RunId
    job: int
    epoch: int
    position: int
    head: str
    wei_per_micro: int
    amounts: dict[str, int]
    """Cumulative, by address, in the job's smallest unit."""
    promised: dict[NodeId, int]
    """The same by node, at whatever addresses."""
    addresses: dict[NodeId, str]
    """Where each node wanted its pay when this was made."""
    mode: str = "roots"
    """How the job pays, see `chain.modes`."""
    vouchers: dict[str, str] = {}
    """By address, what the coordinator signed for it, where the job pays by that."""

    @property
    def total(self) -> int:
        return sum(self.amounts.values())

    def tree(self) -> Tree:
        return make_tree(self.job, self.amounts)


def boundaries(pages: Sequence[StoredPage], per_epoch: int, over: bool) -> list[Boundary]:
    """Every `per_epoch` pages end an epoch; the end of the run ends the last."""
    cumulative: dict[NodeId, int] = {}
    found: list[Boundary] = []
    for count, stored in enumerate(pages, 1):
        for node, micro in balances_of(stored.page.lines).items():
            cumulative[node] = cumulative.get(node, 0) + micro
        if count % per_epoch == 0 or (over and count == len(pages)):
            page = stored.page
            found.append(Boundary(len(found) + 1, page.position, page.head, dict(cumulative)))
    return found


def make_record(
    run: RunId,
    terms: JobTerms,
    boundary: Boundary,
    addresses: Mapping[NodeId, str],
    known: EpochRecord | None,
) -> EpochRecord:
    """Who has stated an address is in it with everything so far; whoever has not stays for a later epoch. `known` is
    the record before: what an address was promised there stays, even if its node has moved to another since."""
    amounts = dict(known.amounts) if known else {}
    promised = dict(known.promised) if known else {}
    for node, micro in sorted(boundary.cumulative.items()):
        gained = micro * terms.wei_per_micro - promised.get(node, 0)
        if node in addresses and gained > 0:
            amounts[addresses[node]] = amounts.get(addresses[node], 0) + gained
            promised[node] = promised.get(node, 0) + gained
    return EpochRecord(
        run=run,
        job=terms.job,
        epoch=boundary.epoch,
        position=boundary.position,
        head=boundary.head,
        wei_per_micro=terms.wei_per_micro,
        amounts=dict(sorted(amounts.items())),
        promised=dict(sorted(promised.items())),
        addresses=dict(sorted(addresses.items())),
        mode=terms.mode,
    )


def record_fields(record: EpochRecord) -> dict[str, Any]:
    """For a JSON file: the record, its root, and a proof for every address."""
    tree = record.tree()
    return {
        **msgspec.to_builtins(record),
        "root": "0x" + tree.root.hex(),
        "total": record.total,
        "proofs": {a: ["0x" + one.hex() for one in tree.proof(a)] for a in record.amounts},
    }


def keep_record(store: LogStore, record: EpochRecord) -> None:
    body = json.dumps(msgspec.to_builtins(record)).encode()
    store.keep(record.run, f"{KEY}{record.job}.{record.epoch:08}", body)


def kept_records(store: LogStore, run: RunId, job: int) -> list[EpochRecord]:
    """In the order of epochs."""
    found = store.kept(run, f"{KEY}{job}.")
    return [msgspec.convert(json.loads(body), EpochRecord) for _, body in sorted(found.items())]
