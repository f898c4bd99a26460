"""What people sign for the contract, by EIP-712: vouchers of a coordinator, and the root that a staker's log gives.

In flow a domain, an account and plain values; out flow signatures of 65 bytes. Invariant: the same words are always
signed to the same bytes, and a signature for one contract or chain is worth nothing on another.
"""

from __future__ import annotations

from typing import Any

from shoal.chain.abi import Type, encode
from shoal.chain.epochs import EpochRecord
from shoal.chain.keccak import keccak256
from shoal.chain.signing import Account, typed_digest

_ROOT = "EpochRoot(uint256 jobId,uint64 epoch,bytes32 root,uint128 total,bytes32 dataHash)"
_VOUCHER = "Voucher(uint256 jobId,address node,uint128 cumulative,uint64 epoch)"


def sign_voucher(
    account: Account, domain: bytes, job: int, address: str, cumulative: int, epoch: int
) -> bytes:
    """The coordinator's word that an address has earned so much in all."""
    return account.sign_bytes(_digest(domain, _VOUCHER, job, address, cumulative, epoch))


def sign_root(account: Account, domain: bytes, record: EpochRecord) -> bytes:
    """A staker's word that a record's root is what the log gives."""
    return account.sign_bytes(root_digest(domain, record))


def root_digest(domain: bytes, record: EpochRecord) -> bytes:
    root, head = record.tree().root, bytes.fromhex(record.head)
    return _digest(domain, _ROOT, record.job, record.epoch, root, record.total, head)


def _digest(domain: bytes, kind: str, *values: Any) -> bytes:
    inside = kind[kind.index("(") + 1 : -1]
    types = [Type("bytes32"), *(Type(field.split()[0]) for field in inside.split(","))]
    return typed_digest(domain, keccak256(encode(types, (keccak256(kind.encode()), *values))))
