"""Epoch records as files: what a node is given to claim with, or to check.

In flows JSON of a stranger; out flows a record. Invariant: nothing in the file is believed that is not recomputed:
roots and proofs are made anew from the amounts.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from shoal.base.errors import ShoalError
from shoal.chain.epochs import EpochRecord
from shoal.chain.signing import to_checksum

MAX_BYTES = 64 << 20
FIELDS = EpochRecord.__struct_fields__


def read_record(path: Path) -> EpochRecord:
    """Raises SH-CHAIN-11 or SH-CHAIN-03."""
    try:
        with open(path, encoding="utf-8") as file:
            values = json.loads(file.read(MAX_BYTES))
        record = msgspec.convert({name: values[name] for name in FIELDS}, EpochRecord)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise ShoalError(
            "SH-CHAIN-11", f"{path.name} is not an epoch's record: {error}", "get it again"
        ) from None
    for address in record.amounts:
        to_checksum(address)
    if not record.amounts:
        raise ShoalError("SH-CHAIN-11", f"{path.name} has no amounts", "get it again")
    return record


def claims_in(record: EpochRecord) -> list[tuple[str, int, list[bytes]]]:
    """What `claimMany` takes."""
    tree = record.tree()
    return [(address, amount, tree.proof(address)) for address, amount in record.amounts.items()]
