"""Accounts and what they sign: EIP-1559 transactions and EIP-712 digests.

In flow a secret and plain values; out flow raw transactions and signatures. Invariant: the secret is in no text that
this object gives (`repr`, errors), and the same transaction is always signed to the same bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from shoal.base.errors import ShoalError
from shoal.chain.keccak import keccak256, missing_extra

CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_ADDRESS = re.compile("0x[0-9a-fA-F]{40}")


class Account:
    """A key on the chain. Raises SH-CHAIN-01 without the extra `chain`, SH-CHAIN-02 for a secret that is none."""

    def __init__(self, secret: bytes) -> None:
        try:
            from coincurve import PrivateKey
        except ImportError:
            raise missing_extra("coincurve") from None
        if len(secret) != 32 or not 0 < int.from_bytes(secret, "big") < CURVE_ORDER:
            raise ShoalError(
                "SH-CHAIN-02", "the secret is not a key of 32 bytes", "check where the key comes from"
            )
        self._key = PrivateKey(secret)
        self.address = _address_of(self._key.public_key.format(compressed=False)[1:])

    def sign_digest(self, digest: bytes) -> tuple[int, int, int]:
        """(parity, r, s) of a 32-byte digest."""
        signature = self._key.sign_recoverable(digest, hasher=None)
        return signature[64], int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")

    def sign_bytes(self, digest: bytes) -> bytes:
        """r, s, v in 65 bytes, as contracts take it."""
        parity, r, s = self.sign_digest(digest)
        return r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([27 + parity])

    def __repr__(self) -> str:
        return f"Account({self.address})"


def signer_of(digest: bytes, signature: bytes) -> str | None:
    """Whose signature it is, as contracts take it, or None if it is none. Raises SH-CHAIN-01."""
    try:
        from coincurve import PublicKey
    except ImportError:
        raise missing_extra("coincurve") from None
    if len(signature) != 65 or signature[64] not in (27, 28):
        return None
    recoverable = signature[:64] + bytes([signature[64] - 27])
    try:
        public = PublicKey.from_signature_and_message(recoverable, digest, hasher=None)
    except Exception:  # The library raises plain ones, for numbers that are on no curve.
        return None
    return _address_of(public.format(compressed=False)[1:])


def _address_of(public: bytes) -> str:
    return to_checksum("0x" + keccak256(public)[-20:].hex())


def to_checksum(address: str) -> str:
    """An address with the capitals that tell typing mistakes. Raises SH-CHAIN-03 for what is no address."""
    if not _ADDRESS.fullmatch(address):
        raise _malformed(address, "an address is 0x and 40 hexadecimal digits")
    low = address[2:].lower()
    marks = keccak256(low.encode()).hex()
    return "0x" + "".join(c.upper() if int(mark, 16) >= 8 else c for c, mark in zip(low, marks, strict=False))


def read_address(text: str) -> str:
    """An address that a person typed: all in one case, or with the right capitals. Raises SH-CHAIN-03."""
    checked = to_checksum(text)
    digits = text[2:]
    if text != checked and digits not in (digits.lower(), digits.upper()):
        raise _malformed(text, "its capitals do not fit: a digit is wrong")
    return checked


def _malformed(text: str, why: str) -> ShoalError:
    return ShoalError(
        "SH-CHAIN-03", f"{text[:80]!r} is not an address: {why}", "copy it again from the wallet"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """EIP-1559, before it is signed. `to` is "" to deploy."""

    chain_id: int
    nonce: int
    to: str
    data: bytes
    gas: int
    max_fee: int
    priority_fee: int
    value: int = 0

    def signed(self, account: Account) -> bytes:
        """The raw bytes that any node takes."""
        fields: list[Any] = [
            self.chain_id,
            self.nonce,
            self.priority_fee,
            self.max_fee,
            self.gas,
            bytes.fromhex(self.to[2:]) if self.to else b"",
            self.value,
            self.data,
            [],
        ]
        digest = keccak256(b"\x02" + rlp(fields))
        return b"\x02" + rlp([*fields, *account.sign_digest(digest)])


def transaction_hash(raw: bytes) -> str:
    return "0x" + keccak256(raw).hex()


def rlp(value: Any) -> bytes:
    """Recursive length prefix: numbers, bytes and lists of them."""
    if isinstance(value, int):
        value = value.to_bytes(-(-value.bit_length() // 8), "big")
    if isinstance(value, bytes):
        return value if len(value) == 1 and value[0] < 0x80 else _prefixed(value, 0x80)
    return _prefixed(b"".join(rlp(item) for item in value), 0xC0)


def _prefixed(body: bytes, offset: int) -> bytes:
    if len(body) < 56:
        return bytes([offset + len(body)]) + body
    length = len(body).to_bytes(-(-len(body).bit_length() // 8), "big")
    return bytes([offset + 55 + len(length)]) + length + body


def typed_digest(domain: bytes, struct_hash: bytes) -> bytes:
    """What EIP-712 signs, from a contract's domain separator and a struct's hash."""
    return keccak256(b"\x19\x01" + domain + struct_hash)
