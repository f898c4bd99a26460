"""Ethereum's hash, from the extra `chain`.

In flow bytes; out flow 32 bytes. Invariant: whoever lacks the extra is told how to get it, and nothing else of Shoal
needs it.
"""

from __future__ import annotations

from shoal.base.errors import ShoalError


def keccak256(data: bytes) -> bytes:
    """Keccak-256, which is not SHA3-256. Raises SH-CHAIN-01 without the extra `chain`."""
    try:
        from Crypto.Hash import keccak
    except ImportError:
        raise missing_extra("pycryptodome") from None
    return keccak.new(digest_bits=256, data=data).digest()


def missing_extra(package: str) -> ShoalError:
    return ShoalError(
        "SH-CHAIN-01", f"settling on a chain needs the package {package}", "run: pip install 'shoal[chain]'"
    )
