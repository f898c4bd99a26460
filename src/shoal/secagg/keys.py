"""Envelopes that only one member opens: X25519 and ML-KEM-768 together, so that either alone keeps the secret.

In flow a seed, or bytes for somebody; out flow keys, or bytes that only they can read. Invariant: keys are a pure
function of their seed, so whoever is given a seed can check it against the public half that was signed.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEM_PUBLIC_BYTES = 1184
PUBLIC_BYTES = KEM_PUBLIC_BYTES + 32
ENVELOPE_EXTRA_BYTES = 1088 + 32 + 16
"""What an envelope has beside its content: the two encapsulated secrets and a tag."""
_SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def derive(secret: bytes, purpose: bytes, size_bytes: int = 32) -> bytes:
    """Bytes of their own for each purpose (HKDF-SHA256)."""
    return HKDF(hashes.SHA256(), size_bytes, salt=None, info=b"shoal/secagg/" + purpose).derive(secret)


@dataclass(frozen=True, slots=True)
class KeyPair:
    private: MLKEM768X25519PrivateKey
    public: bytes

    @staticmethod
    def of(seed: bytes) -> KeyPair:
        kem = MLKEM768PrivateKey.from_seed_bytes(derive(seed, b"ml-kem-768", 64))
        curve = X25519PrivateKey.from_private_bytes(derive(seed, b"x25519"))
        public = kem.public_key().public_bytes_raw() + curve.public_key().public_bytes_raw()
        return KeyPair(MLKEM768X25519PrivateKey(kem, curve), public)

    def open(self, envelope: bytes, context: bytes) -> bytes | None:
        """What is inside; None if it is for somebody else, for something else, or altered."""
        try:
            return _SUITE.decrypt(envelope, self.private, info=context)
        except (InvalidTag, ValueError):
            return None


def close(content: bytes, public: bytes, context: bytes) -> bytes | None:
    """An envelope for the holder of a key, good in one context only; None if that is no key."""
    if len(public) != PUBLIC_BYTES:
        return None
    try:
        kem = MLKEM768PublicKey.from_public_bytes(public[:KEM_PUBLIC_BYTES])
        curve = X25519PublicKey.from_public_bytes(public[KEM_PUBLIC_BYTES:])
        return _SUITE.encrypt(content, MLKEM768X25519PublicKey(kem, curve), info=context)
    except ValueError:
        return None


def is_key(public: bytes) -> bool:
    """Whether something can be closed for its holder."""
    return close(b"", public, b"") is not None
