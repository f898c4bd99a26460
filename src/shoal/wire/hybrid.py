"""Hybrid keys: Ed25519 and ML-DSA-65 side by side, so that a signature holds while either of the two does.

In flow a node's 32 secret bytes; out flow public keys, and signatures of both kinds in one. Invariant: both sign the
same message, which names the pair of keys, so that no half of a signature can be put beside another half or key.
"""

from __future__ import annotations

import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA65PublicKey

PUBLIC_BYTES, SIGNATURE_BYTES = 32, 64
"""Of Ed25519, which come first in both."""
HYBRID_PUBLIC_BYTES = PUBLIC_BYTES + 1952
HYBRID_SIGNATURE_BYTES = SIGNATURE_BYTES + 3309
_SEED_CONTEXT = "shoal 2026-11 ML-DSA-65 seed of a node key"


class HybridKey:
    """The second key is derived from the first one's secret by a one-way function: whoever finds Ed25519's private
    number from its public key knows the secret's hash, and not the secret."""

    def __init__(self, secret: bytes) -> None:
        self._first = Ed25519PrivateKey.from_private_bytes(secret)
        self._second = MLDSA65PrivateKey.from_seed_bytes(
            blake3.blake3(secret, derive_key_context=_SEED_CONTEXT).digest()
        )
        first = self._first.public_key().public_bytes_raw()
        self.public = first + self._second.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        both = _bound(message, self.public)
        return self._first.sign(both) + self._second.sign(both)


def is_sound(public: bytes, message: bytes, signature: bytes) -> bool:
    """True if both halves hold. Never raises, whatever the bytes."""
    both = _bound(message, public)
    try:
        first = Ed25519PublicKey.from_public_bytes(public[:PUBLIC_BYTES])
        first.verify(signature[:SIGNATURE_BYTES], both)
        second = MLDSA65PublicKey.from_public_bytes(public[PUBLIC_BYTES:])
        second.verify(signature[SIGNATURE_BYTES:], both)
    except (InvalidSignature, ValueError):
        return False
    return True


def _bound(message: bytes, public: bytes) -> bytes:
    return b"hybrid/" + message + blake3.blake3(public).digest()
