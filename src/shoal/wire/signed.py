"""A signed statement: exact bytes, and a signature over them. Parsing happens after the check.

In flows a value and an identity; out flows bytes that anyone can check and nobody can alter. Invariant: a
statement is decoded from the very bytes that were signed, never encoded again.
"""

from __future__ import annotations

from typing import TypeVar

import blake3
import msgspec

from shoal.base.memo import Memo
from shoal.wire.identity import Signer, verify

T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, msgspec.msgpack.Decoder[object]] = {}
SHORT_BYTES = 4096
VALUE_TIMES, VALUE_BYTES = 3, 100
"""What a payload and the value in it take together: so many times the payload's bytes, and so many more."""
_read: Memo[tuple[type, bytes], object] = Memo(2 << 20)


class Signed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`payload` is a MessagePack struct; whose signature it is, the payload or its context says."""

    payload: bytes
    signature: bytes


def sign(identity: Signer, value: msgspec.Struct) -> Signed:
    """Sign a struct; its class name is the domain, so a claim's signature can never pass for a receipt's."""
    payload = _encoder.encode(value)
    return Signed(payload, identity.sign(type(value).__name__, payload))


def open_signed(signed: Signed, kind: type[T], public: bytes) -> T | None:
    """The statement inside, or None if `public` did not sign it or it is not a `kind`."""
    return parse(signed.payload, kind) if is_signed(signed, kind, public) else None


def is_signed(signed: Signed, kind: type, public: bytes) -> bool:
    """True if `public` signed this as a `kind`."""
    return verify(public, kind.__name__, signed.payload, signed.signature)


def parse(payload: bytes, kind: type[T]) -> T | None:
    """The value in hostile bytes, or None if they are not a `kind`."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        value = decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, kind) else None


def parse_again(payload: bytes, kind: type[T]) -> T | None:
    """The same for short payloads that are met more than once (a claim: in its offer, in its seal, on replay), and are
    frozen: they are read once."""
    known = _read.get((kind, payload))
    if known is not None:
        return known  # type: ignore[return-value]
    value = parse(payload, kind)
    if value is not None and len(payload) <= SHORT_BYTES:
        _read.put((kind, payload), value, VALUE_TIMES * len(payload) + VALUE_BYTES)
    return value


def digest(payload: bytes) -> str:
    """The BLAKE3 hash by which entries and states are named, in hex."""
    return blake3.blake3(payload).hexdigest()
