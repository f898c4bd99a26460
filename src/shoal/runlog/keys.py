"""Which key speaks for a node, and since when: successions, revocations, and the signatures that count.

In flow the words of old and new keys; out flows whether a signature is a node's. Invariant: a key speaks for a node
only by an unbroken line of successions from the one whose hash is the node's id, each signed by both keys; what a
replaced key signed counts for what was begun before, and what a revoked one signed counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from shoal.base.ids import NodeId, RunId
from shoal.runlog.chain import BadEntry
from shoal.wire.hybrid import PUBLIC_BYTES
from shoal.wire.identity import Identity, Signer
from shoal.wire.signed import Signed, digest, is_signed, open_signed, parse, sign

MAX_LINE = 5
"""Successions that one key file may have; after so many a node begins anew."""
MAX_KEY_WORD_BYTES = 8192
_encode = msgspec.msgpack.Encoder().encode


class Succession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From now on `new` speaks for the node that `old` spoke for. Signed by both."""

    node: NodeId
    old: str
    """By its hash, so that the line of a long-lived node fits into its hello."""
    new: bytes
    revokes: bool = False
    """The old key counts for nothing any more, not even for what was begun with it: it is in wrong hands."""


class Revocation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node's own word that it takes no part any more, under any of its keys."""

    run: RunId
    node: NodeId
    reason: str


Handover = tuple[Signed, Signed]
"""One `Succession`, signed by the old key and by the new one."""


class Rotation(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One change of a node's key, for runs of either kind."""

    plain: Handover
    hybrid: Handover


@dataclass(slots=True)
class Keys:
    """The keys of one node in one run."""

    current: bytes
    """Empty once it was revoked."""
    former: list[tuple[bytes, int]] = field(default_factory=list)
    """Those that were replaced and not revoked, each with the position from which on it does not count."""

    def signed(self, signed: Signed, kind: type, about: int) -> bool:
        """True if this is the node's signature, for something that was begun at this position of the log."""
        if is_signed(signed, kind, self.current):
            return True
        return any(about < until and is_signed(signed, kind, public) for public, until in self.former)

    def promised(self, signed: Signed, kind: type) -> bool:
        """The same for a storage receipt, which outlives keys and is signed with Ed25519 alone."""
        if is_signed(signed, kind, self.current[:PUBLIC_BYTES]):
            return True
        return any(is_signed(signed, kind, public[:PUBLIC_BYTES]) for public, _ in self.former)

    def replace(self, line: tuple[Succession, ...], position: int) -> None:
        for succession in line:
            if succession.revokes:
                self.former.clear()
            else:
                self.former.append((self.current, position))
            self.current = succession.new

    def revoke(self) -> None:
        self.current = b""
        self.former.clear()


def open_line(line: tuple[Handover, ...], node: NodeId, current: bytes) -> tuple[Succession, ...]:
    """The successions, if they lead on from this node's current key. Raises `BadEntry`."""
    if not 0 < len(line) <= MAX_LINE:
        raise BadEntry(f"has {len(line)} changes of a key")
    found: list[Succession] = []
    for handover in line:
        found.append(_open_handover(handover, node, current))
        current = found[-1].new
    return tuple(found)


def _open_handover(handover: Handover, node: NodeId, current: bytes) -> Succession:
    by_old, by_new = handover
    short = all(len(one.payload) <= MAX_KEY_WORD_BYTES for one in handover)
    word = open_signed(by_old, Succession, current) if short and current else None
    if word is None or word.node != node or word.old != digest(current):
        raise BadEntry(f"changes the key of {node[:12]} without the word of its current key")
    alike = len(word.new) == len(current) and word.new != current
    if not alike or open_signed(by_new, Succession, word.new) != word:
        raise BadEntry(f"gives {node[:12]} a key that did not agree to it")
    return word


def rotate(old: Identity, secret: bytes, *, revokes: bool) -> tuple[Identity, Rotation]:
    """The identity that follows, and the words by which everybody can tell."""
    fresh = Identity(secret)
    rotation = Rotation(
        _handover(old, fresh, old.node, revokes), _handover(old.hybrid, fresh.hybrid, old.node, revokes)
    )
    line = (*old.line, _encode(rotation))
    return Identity(secret, first=old.first, line=line), rotation


def _handover(old: Signer, new: Signer, node: NodeId, revokes: bool) -> Handover:
    word = Succession(node=node, old=digest(old.public), new=new.public, revokes=revokes)
    return sign(old, word), sign(new, word)


def shown_line(identity: Identity, *, hybrid: bool) -> tuple[bytes, ...]:
    """An identity's line as a hello shows it: the words for a run of this kind."""
    found = [parse(one, Rotation) for one in identity.line]
    return tuple(_encode(one.hybrid if hybrid else one.plain) for one in found if one is not None)


def news_in(encoded: tuple[bytes, ...], current: bytes) -> tuple[Handover, ...]:
    """Of a line that was shown, in hostile bytes, what leads on from the key that is known; not checked any further."""
    news: list[Handover] = []
    for one in encoded[:MAX_LINE]:
        signed = parse(one, _Shown)
        word = parse(signed.by_old.payload, Succession) if signed is not None else None
        if signed is not None and word is not None and word.old == digest(current):
            news.append((signed.by_old, signed.by_new))
            current = word.new
    return tuple(news)


class _Shown(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    by_old: Signed
    by_new: Signed
