"""What a conviction takes back, where some of it is settled on a chain already."""

from __future__ import annotations

import msgspec
from runlog.small_log import COORDINATOR, NODES, Clerk

from shoal.apps.chain_records import wrong_amounts
from shoal.apps.credit_reading import FoundCredit
from shoal.base.ids import NodeId
from shoal.chain.config import JobTerms
from shoal.chain.epochs import Boundary, EpochRecord, make_record
from shoal.credit.account import account_of
from shoal.strategy.recipe import recipe_in_log

from .stories import judge, paying

A, B, C = NODES[:3]
TERMS = JobTerms(job=1, wei_per_micro=10)
ADDRESSES = {node.node: "0x" + f"{place:040x}" for place, node in enumerate((A, B, C), 1)}
PRICE = 600


def credit(clerk: Clerk) -> FoundCredit:
    assert clerk.view.genesis is not None
    spec = recipe_in_log(clerk.view.genesis.recipe).credit
    return FoundCredit(
        account=account_of(clerk.entries, spec),
        coordinator=COORDINATOR.public,
        hashes=tuple(clerk.view.hashes),
        pages=(),
    )


def epoch(clerk: Clerk, number: int, before: EpochRecord | None) -> EpochRecord:
    found, at = credit(clerk), clerk.view.length - 1
    boundary = Boundary(number, at, clerk.view.hashes[at], found.account.balances)
    record = make_record(clerk.view.run, TERMS, boundary, ADDRESSES, before)
    assert not wrong_amounts(record, found)
    return record


def test_convicted_before_its_epoch_is_settled_it_earns_nothing_and_after_that_the_next_ones_pay() -> None:
    clerk = paying(audit={"rate": 0.05}, price_micro=100, hubs_percent=0, auditors_percent=0)
    clerk.join(A, B, C)
    promised: list[dict[NodeId, int]] = []
    record = None
    seals: list[int] = []
    for number, late in enumerate((False, False, True, False, False), 1):
        clerk.plan(A, B, C)
        seals.append(clerk.seal(A, B, C))
        if number == 1:
            judge(clerk, seals[0], A, {B: "forged", C: "forged"})
        if late:
            judge(clerk, seals[1], A, {B: "forged", C: "forged"})
        record = epoch(clerk, number, record)
        promised.append(record.promised)
    assert [one.get(A.node, 0) // TERMS.wei_per_micro for one in promised] == [0, 600, 600, 1200, 1800]
    assert promised[-1][B.node] == 5 * PRICE * TERMS.wei_per_micro
    assert record is not None
    greedy = msgspec.structs.replace(
        record, promised={**record.promised, A.node: 5 * PRICE * TERMS.wei_per_micro}
    )
    assert wrong_amounts(greedy, credit(clerk)), "what was taken back may not be promised anew"


def test_a_settled_amount_stands_when_nothing_follows() -> None:
    clerk = paying(audit={"rate": 0.05}, price_micro=100, hubs_percent=0, auditors_percent=0)
    clerk.join(A, B, C)
    clerk.plan(A, B, C)
    seal = clerk.seal(A, B, C)
    first = epoch(clerk, 1, None)
    judge(clerk, seal, A, {B: "forged", C: "forged"})
    second = epoch(clerk, 2, first)
    assert credit(clerk).account.balances[A.node] == 0
    assert second.amounts == first.amounts, "amounts on a chain never fall"
