"""Everything that is said in a round, with its limits.

In flow bytes from strangers; out flow structs, or None. Invariant: what a member says is signed and names its round;
no field is longer than a group of the largest size needs.

    member -> hub      MaskHello, MaskDeal (+ envelopes), MaskedInput (+ numbers), MaskAgreement, MaskReveal
    hub -> member      Keys,      Dealt,                  Survivors,               Agreed,        Finished
                       Waiting while others have not answered yet, Failed once the round has come to nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import blake3
import msgspec

from shoal.secagg.keys import ENVELOPE_EXTRA_BYTES, PUBLIC_BYTES
from shoal.secagg.masks import SEED_BYTES
from shoal.secagg.shares import SHARE_BYTES
from shoal.secagg.terms import MOST_MEMBERS, Key, Terms
from shoal.wire.signed import Signed, open_signed

T = TypeVar("T", "MaskHello", "MaskDeal", "MaskedInput", "MaskAgreement", "MaskReveal")
Public = Annotated[bytes, msgspec.Meta(min_length=PUBLIC_BYTES, max_length=PUBLIC_BYTES)]
Share = Annotated[bytes, msgspec.Meta(min_length=SHARE_BYTES, max_length=SHARE_BYTES)]
Name = Annotated[str, msgspec.Meta(max_length=40)]
_SEALED_BYTES = 2 * ENVELOPE_EXTRA_BYTES + SEED_BYTES + 2 * SHARE_BYTES
Many = msgspec.Meta(max_length=MOST_MEMBERS)


class Envelopes(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """From one member for another: half of their common seed, and shares of two secrets."""

    half: Annotated[bytes, msgspec.Meta(max_length=_SEALED_BYTES)]
    shares: Annotated[bytes, msgspec.Meta(max_length=_SEALED_BYTES)]

    @property
    def digest(self) -> bytes:
        return digest_of((self.half, self.shares))


class MaskHello(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member's keys for this round: one that may have to be given away, and one that never is."""

    session: Key
    node: Name
    pairing: Public
    private: Public


class MaskDeal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a member has dealt to the others, by hash: envelopes, and the shares in them."""

    session: Key
    node: Name
    keys: Key
    """Hash of the hellos that it answers."""
    envelopes: Annotated[tuple[Key, ...], Many]
    """By member that said hello, in order."""
    own_marks: Annotated[tuple[Key, ...], Many]
    pair_marks: Annotated[tuple[Key, ...], Many]


class MaskedInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session: Key
    node: Name
    dealt: Key
    """Hash of the deals that its masks are from."""
    numbers: Key
    """Hash of the masked numbers."""


class MaskAgreement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose updates are in the sum, as one of them was told. Nobody signs two of these in one round."""

    session: Key
    node: Name
    dealt: Key
    survivors: Annotated[tuple[Name, ...], Many]


class MaskReveal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares: of what hides a survivor's own update, and of what pairs a missing member with the others."""

    session: Key
    node: Name
    own: Annotated[dict[Name, Share], Many]
    pairs: Annotated[dict[Name, Share], Many]


class Keys(msgspec.Struct, frozen=True, tag="keys"):
    hellos: Annotated[tuple[Signed, ...], Many]


class Dealt(msgspec.Struct, frozen=True, tag="dealt"):
    deals: Annotated[tuple[Signed, ...], Many]
    envelopes: Annotated[dict[Name, Envelopes], Many]
    """For the one who reads this, by sender."""


class Survivors(msgspec.Struct, frozen=True, tag="survivors"):
    nodes: Annotated[tuple[Name, ...], Many]


class Agreed(msgspec.Struct, frozen=True, tag="agreed"):
    agreements: Annotated[tuple[Signed, ...], Many]


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The hub has the sum."""


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    reason: Annotated[str, msgspec.Meta(max_length=200)]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    reason: Annotated[str, msgspec.Meta(max_length=1000)]


FromHub = Keys | Dealt | Survivors | Agreed | Finished | Waiting | Failed
MOST_HUB_BYTES = MOST_MEMBERS * (MOST_MEMBERS * 3 * 34 + 4 * PUBLIC_BYTES + 2 * _SEALED_BYTES + 1000)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the other side said is not taken, and why. `node`: whose fault it is; "" for the other side's."""

    why: str
    node: str = ""


def open_statement(signed: Signed, kind: type[T], terms: Terms, node: str) -> T | None:
    """A member's word in this round; None unless it signed just this, as one of the roster. Nothing may be beside it:
    a word that is padded would be too long for whoever it is handed on to."""
    public = terms.public(node)
    said = open_signed(signed, kind, public) if public is not None else None
    if said is None or said.node != node or said.session != terms.session:
        return None
    return said if msgspec.msgpack.encode(said) == signed.payload else None


def author(signed: Signed) -> str:
    """Who says that it is its word; "" if nobody can be made out."""
    try:
        return msgspec.msgpack.decode(signed.payload, type=_Author).node
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


class _Author(msgspec.Struct):
    node: Name


def digest_of(parts: Sequence[bytes]) -> bytes:
    """One hash of several byte strings, in order."""
    hashed = blake3.blake3(b"shoal/secagg/parts")
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.digest()


def hash_statements(statements: Sequence[Signed]) -> bytes:
    return digest_of([signed.payload for signed in statements])


def mark(session: bytes, dealer: str, kind: str, share: bytes) -> bytes:
    """By which a share is known that is not seen yet. A share is drawn evenly from 2^521 values: a hash hides it."""
    return digest_of([session, dealer.encode(), kind.encode(), share])
