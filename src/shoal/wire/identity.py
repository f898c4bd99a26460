"""Who a node is: an Ed25519 key, and an id that is the hash of its public half.

In flow 32 secret bytes; out flow signatures. Invariant: a signature covers a domain (what kind of thing is
signed) and the exact bytes, so that no signature can be replayed as another kind of thing. A public key says by its
length which signatures it asks for: Ed25519's, or those of both kinds (`wire.hybrid`).
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Protocol

import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shoal.base.ids import NodeId
from shoal.base.memo import Memo
from shoal.wire import hybrid
from shoal.wire.hybrid import HYBRID_PUBLIC_BYTES, HYBRID_SIGNATURE_BYTES, PUBLIC_BYTES, SIGNATURE_BYTES

SHORT_BYTES = 4096
STATEMENT_BYTES = 150
"""What a statement that is known again takes besides its payload: its signature, and where it is kept."""
CHECK_BYTES = 65


class Signer(Protocol):
    """Whoever can sign: with one key, or with two."""

    @property
    def public(self) -> bytes: ...
    @property
    def node(self) -> NodeId: ...
    def sign(self, domain: str, payload: bytes) -> bytes: ...


class Identity:
    """A node's key pair. The secret never leaves this object except through `secret` to its key file.

    `first` is the key pair whose public half the node's id is the hash of: itself, or where a later key speaks for the
    node (`runlog.keys`) the one it began with, by which peers connect. `line` are the words by which each key named the
    next."""

    def __init__(self, secret: bytes, *, first: Identity | None = None, line: tuple[bytes, ...] = ()) -> None:
        self.private = Ed25519PrivateKey.from_private_bytes(secret)
        self.public: bytes = self.private.public_key().public_bytes_raw()
        self.first: Identity = first or self
        self.line = line
        self.node: NodeId = node_id(self.first.public)

    @staticmethod
    def generate() -> Identity:
        return Identity(os.urandom(32))

    @property
    def secret(self) -> bytes:
        return self.private.private_bytes_raw()

    def sign(self, domain: str, payload: bytes) -> bytes:
        message = _message(domain, payload)
        signature = self.private.sign(message)
        _remember(_check(self.public, message, signature), True)
        return signature

    @cached_property
    def hybrid(self) -> HybridIdentity:
        """The same, signing with both kinds of key."""
        return HybridIdentity(self)

    def for_key(self, public: bytes) -> Signer:
        """What signs as a run asks for that knows this node by such a key."""
        return self.hybrid if is_hybrid(public) else self

    def __repr__(self) -> str:
        return f"Identity({self.node})"


class HybridIdentity:
    """A node that signs with Ed25519 and ML-DSA-65. Its id is that of its first key."""

    def __init__(self, identity: Identity) -> None:
        self._key = hybrid.HybridKey(identity.secret)
        self.public = self._key.public
        self.node = identity.node

    def sign(self, domain: str, payload: bytes) -> bytes:
        message = _message(domain, payload)
        signature = self._key.sign(message)
        _remember(_check(self.public, message, signature), True)
        return signature


def is_hybrid(public: bytes) -> bool:
    return len(public) == HYBRID_PUBLIC_BYTES


def node_id(public: bytes) -> NodeId:
    """The id that belongs to a public key: a hybrid one has that of its Ed25519 half, by which peers connect."""
    first = public[:PUBLIC_BYTES] if is_hybrid(public) else public
    return NodeId(blake3.blake3(first).hexdigest()[:40])


def verify(public: bytes, domain: str, payload: bytes, signature: bytes) -> bool:
    """True if the holder of `public` signed exactly this, with both keys if there are two. Never raises, whatever the
    bytes."""
    if _SIGNATURES.get(len(public)) != len(signature):
        return False
    if _lately.get(signature) == (public, domain, payload):
        return True
    message = _message(domain, payload)
    check = _check(public, message, signature)
    sound = _remembered.get(check)
    if sound is None:
        sound = _remember(check, _is_sound(public, message, signature))
    if sound and len(payload) <= SHORT_BYTES and not is_hybrid(public):
        _lately.put(signature, (public, domain, payload), STATEMENT_BYTES + len(payload))
    return sound


_SIGNATURES = {PUBLIC_BYTES: SIGNATURE_BYTES, HYBRID_PUBLIC_BYTES: HYBRID_SIGNATURE_BYTES}
"""Bytes of a public key, and of the signatures that it asks for."""


_domains: dict[str, bytes] = {}
"""How what is signed begins, for each of the few kinds there are."""


def _message(domain: str, payload: bytes) -> bytes:
    begin = _domains.get(domain)
    if begin is None:
        begin = _domains[domain] = b"shoal/" + domain.encode() + b"\0"
    return begin + blake3.blake3(payload).digest()


# Every process checks the same entries more than once (its own, on arrival, on replay); the answer never changes.
_remembered: Memo[bytes, bool] = Memo(4 << 20)
_lately: Memo[bytes, tuple[bytes, str, bytes]] = Memo(2 << 20)
"""By signature, short statements that were found sound not long ago: known again without being hashed."""


def forget_checks() -> None:
    """Check everything anew, to measure what a check takes."""
    _remembered.clear()
    _lately.clear()


def _check(public: bytes, message: bytes, signature: bytes) -> bytes:
    """By what a check is remembered. The key's length says the signature's, so that nothing else has this hash."""
    return blake3.blake3(b"".join((len(public).to_bytes(4, "little"), public, message, signature))).digest()


def _remember(check: bytes, sound: bool) -> bool:
    _remembered.put(check, sound, CHECK_BYTES)
    return sound


def _is_sound(public: bytes, message: bytes, signature: bytes) -> bool:
    if is_hybrid(public):
        return hybrid.is_sound(public, message, signature)
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
