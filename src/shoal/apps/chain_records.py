"""Epoch records as files: what a node is given to claim with, or to check.

In flows JSON of a stranger; out flows a record. Invariant: nothing in the file is believed that is not recomputed:
roots and proofs are made anew from the amounts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.apps.credit_reading import FoundCredit
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId
from shoal.chain.config import JobTerms
from shoal.chain.epochs import Boundary, EpochRecord, make_record
from shoal.chain.modes import mode_called
from shoal.chain.signing import signer_of, to_checksum
from shoal.credit.account import balances_of

MAX_BYTES = 64 << 20
FIELDS = EpochRecord.__struct_fields__
LATER = {"mode": "roots", "vouchers": {}}
"""What older files may lack."""


def read_record(path: Path) -> EpochRecord:
    """Raises SH-CHAIN-11 or SH-CHAIN-03."""
    try:
        with open(path, encoding="utf-8") as file:
            values = json.loads(file.read(MAX_BYTES))
        known = {**LATER, **values}
        record = msgspec.convert({name: known[name] for name in FIELDS}, EpochRecord)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise ShoalError(
            "SH-CHAIN-11", f"{path.name} is not an epoch's record: {error}", "get it again"
        ) from None
    for address in record.amounts:
        to_checksum(address)
    mode_called(record.mode)
    if record.mode == "vouchers" and record.vouchers.keys() != record.amounts.keys():
        raise ShoalError("SH-CHAIN-11", f"{path.name} has not a voucher for everybody", "get it again")
    if not record.amounts:
        raise ShoalError("SH-CHAIN-11", f"{path.name} has no amounts", "get it again")
    return record


def wrong_amounts(record: EpochRecord, credit: FoundCredit) -> list[str]:
    """In words, where a record gives other amounts than the log does."""
    if trouble := _not_in_log(record, credit):
        return [trouble]
    earned, most = _earned(record, credit), _most(record, credit)
    found = [
        f"{node[:12]} has {record.promised.get(node, 0)}, and earned {earned.get(node, 0)}"
        for node in sorted({*record.promised, *(n for n in earned if n in record.addresses)})
        if not earned.get(node, 0) <= record.promised.get(node, 0) <= most.get(node, 0)
    ]
    if record.total != sum(record.promised.values()):
        found.append(f"its leaves come to {record.total}, its nodes to {sum(record.promised.values())}")
    return found


def right_record(record: EpochRecord, before: EpochRecord | None, credit: FoundCredit) -> EpochRecord:
    """The same epoch as the log gives it. Raises SH-CHAIN-11 where the log has no such entry."""
    if trouble := _not_in_log(record, credit):
        raise ShoalError("SH-CHAIN-11", trouble, "use a copy of the run's whole log")
    terms = JobTerms(job=record.job, wei_per_micro=record.wei_per_micro, mode=record.mode)
    cumulative = {node: wei // record.wei_per_micro for node, wei in _earned(record, credit).items()}
    boundary = Boundary(record.epoch, record.position, record.head, cumulative)
    return make_record(record.run, terms, boundary, record.addresses, before)


def _not_in_log(record: EpochRecord, credit: FoundCredit) -> str:
    position = record.position
    if 0 <= position < len(credit.hashes) and credit.hashes[position] == record.head:
        return ""
    return f"it names entry {position} as {record.head[:12]}, which is not in this log"


def _earned(record: EpochRecord, credit: FoundCredit) -> dict[NodeId, int]:
    """What the log gives every node up to the record's entry, in the job's smallest unit."""
    lines = (line for line in credit.account.lines if line.position <= record.position)
    return {node: micro * record.wei_per_micro for node, micro in balances_of(lines).items()}


def _most(record: EpochRecord, credit: FoundCredit) -> dict[NodeId, int]:
    """The most that a node ever had up to the record's entry. Where a conviction has taken something back since an
    earlier epoch, that epoch's promise stands until new earnings have made up for it."""
    has: dict[NodeId, int] = {}
    most: dict[NodeId, int] = {}
    for line in credit.account.lines:
        if line.position <= record.position:
            has[line.node] = has.get(line.node, 0) + line.micro
            most[line.node] = max(most.get(line.node, 0), has[line.node])
    return {node: micro * record.wei_per_micro for node, micro in most.items()}


def in_order(digest: bytes, lines: Sequence[str]) -> list[bytes]:
    """Signatures in the order of their signers, as the contract takes them. Raises SH-CHAIN-11."""
    by_signer: dict[str, bytes] = {}
    for line in lines:
        try:
            signature = bytes.fromhex(line.strip().removeprefix("0x"))
        except ValueError:
            signature = b""
        signer = signer_of(digest, signature)
        if signer is None:
            raise ShoalError(
                "SH-CHAIN-11", f"{line[:20]}... is no signature", "copy the line of `sign` again"
            )
        by_signer[signer] = signature
    return [by_signer[signer] for signer in sorted(by_signer, key=str.lower)]


def decrease(record: EpochRecord, earlier: EpochRecord) -> tuple[Any, ...]:
    """What `proveDecrease` takes: an address that has less now. Raises SH-CHAIN-11 where none has."""
    for address, was in earlier.amounts.items():
        now = record.amounts.get(address)
        if now is not None and now < was:
            proofs = earlier.tree().proof(address), record.tree().proof(address)
            return (record.job, earlier.epoch, address, was, proofs[0], now, proofs[1])
    raise ShoalError(
        "SH-CHAIN-11",
        "nobody in the record has less than in the earlier one",
        "let the arbiter or a quorum decide",
    )
