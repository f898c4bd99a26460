"""The three ways a job pays: how an epoch's record is brought to the chain, and how what it gives is claimed.

In flow records; out flow call data for TrainingRewards. Invariant: a record says by itself all that its mode needs, so
that whoever has the file can claim with it; adding a mode is a row in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.base.errors import ShoalError
from shoal.chain.contracts import shipped
from shoal.chain.epochs import EpochRecord

MOST_RECORDS = 1000
"""Contributions in one transaction: more do not fit a block of 30 million gas."""
AHEAD = 32
"""Roots that may be under way at once; fewer than the contract's ring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    name: str
    number: int
    """As the contract has it."""
    submit: Callable[[EpochRecord, EpochRecord | None], bytes] | None
    """What the coordinator sends for a record and the one before; None if it sends nothing."""
    claim: Callable[[EpochRecord], bytes]
    """What anyone sends to have everybody in a record paid."""
    ahead: int = 1
    """How many epochs' transactions may be under way at once."""


def _submit_units(record: EpochRecord, before: EpochRecord | None) -> bytes:
    """What each address has gained, in millionths of a credit: the job's price is what one of them is worth."""
    known = before.amounts if before else {}
    gains = {a: amount - known.get(a, 0) for a, amount in record.amounts.items() if amount > known.get(a, 0)}
    if len(gains) > MOST_RECORDS:
        raise ShoalError(
            "SH-CHAIN-09",
            f"epoch {record.epoch} has {len(gains)} contributions, and one transaction takes {MOST_RECORDS}",
            "create the run's job with --mode roots",
        )
    packed = [
        bytes.fromhex(a[2:]) + (gain // record.wei_per_micro).to_bytes(12, "big") for a, gain in gains.items()
    ]
    # One submission for each epoch, so that its number is the epoch's.
    return shipped("TrainingRewards")["submitContributions"].call(
        record.job, record.epoch, record.epoch - 1, packed
    )


def _submit_root(record: EpochRecord, before: EpochRecord | None) -> bytes:
    root, head = record.tree().root, bytes.fromhex(record.head)
    return shipped("TrainingRewards")["submitEpochRoot"].call(
        record.job, record.epoch, root, record.total, head
    )


def _claim_units(record: EpochRecord) -> bytes:
    return shipped("TrainingRewards")["distributePayments"].call(record.job, list(record.amounts))


def _claim_root(record: EpochRecord) -> bytes:
    tree = record.tree()
    claims = [(address, amount, tree.proof(address)) for address, amount in record.amounts.items()]
    return shipped("TrainingRewards")["claimMany"].call(record.job, record.epoch, claims)


def _claim_vouchers(record: EpochRecord) -> bytes:
    vouchers = [
        (address, amount, record.epoch, bytes.fromhex(record.vouchers[address][2:]))
        for address, amount in record.amounts.items()
    ]
    return shipped("TrainingRewards")["redeemVouchers"].call(record.job, vouchers)


MODES = {
    mode.name: mode
    for mode in (
        Mode(name="units", number=1, submit=_submit_units, claim=_claim_units),
        Mode(name="roots", number=2, submit=_submit_root, claim=_claim_root, ahead=AHEAD),
        Mode(name="vouchers", number=3, submit=None, claim=_claim_vouchers),
    )
}


def mode_called(name: str) -> Mode:
    """Raises SH-CHAIN-11 with the names there are."""
    if name not in MODES:
        raise ShoalError("SH-CHAIN-11", f"no job pays by {name!r}", f"use one of: {', '.join(MODES)}")
    return MODES[name]
