"""Who a node is: an Ed25519 key, and an id that is the hash of its public half.

In flow 32 secret bytes; out flow signatures. Invariant: a signature covers a domain (what kind of thing is
signed) and the exact bytes, so that no signature can be replayed as another kind of thing.
"""

from __future__ import annotations

import os

import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shoal.base.ids import NodeId

PUBLIC_BYTES = 32
SIGNATURE_BYTES = 64
MOST_REMEMBERED = 65536


class Identity:
    """A node's key pair. The secret never leaves this object except through `secret` to its key file."""

    def __init__(self, secret: bytes) -> None:
        self.private = Ed25519PrivateKey.from_private_bytes(secret)
        self.public: bytes = self.private.public_key().public_bytes_raw()
        self.node: NodeId = node_id(self.public)

    @staticmethod
    def generate() -> Identity:
        return Identity(os.urandom(32))

    @property
    def secret(self) -> bytes:
        return self.private.private_bytes_raw()

    def sign(self, domain: str, payload: bytes) -> bytes:
        message = _message(domain, payload)
        signature = self.private.sign(message)
        _remember((self.public, message, signature), True)
        return signature

    def __repr__(self) -> str:
        return f"Identity({self.node})"


def node_id(public: bytes) -> NodeId:
    """The id that belongs to a public key."""
    return NodeId(blake3.blake3(public).hexdigest()[:40])


def verify(public: bytes, domain: str, payload: bytes, signature: bytes) -> bool:
    """True if the holder of `public` signed exactly this. Never raises, whatever the bytes."""
    if len(public) != PUBLIC_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    check = (public, _message(domain, payload), signature)
    sound = _remembered.get(check)
    return _remember(check, _is_sound(*check)) if sound is None else sound


def _message(domain: str, payload: bytes) -> bytes:
    return b"shoal/" + domain.encode() + b"\0" + blake3.blake3(payload).digest()


# Every process checks the same entries more than once (its own, on arrival, on replay); the answer never changes.
_remembered: dict[tuple[bytes, bytes, bytes], bool] = {}


def _remember(check: tuple[bytes, bytes, bytes], sound: bool) -> bool:
    if len(_remembered) >= MOST_REMEMBERED:
        _remembered.clear()
    _remembered[check] = sound
    return sound


def _is_sound(public: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
