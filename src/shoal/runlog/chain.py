"""The hash chain: making entries, and checking that one follows another.

In flow encoded entries; out flow entries whose signature, run, position and predecessor hold. Invariant: an
entry's hash covers its exact bytes and, through `previous`, all entries before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.base.memo import Memo
from shoal.runlog.entries import Body, Entry, Genesis, Head
from shoal.wire.identity import Signer, verify
from shoal.wire.signed import Signed, digest, parse, sign

MAX_ENTRY_BYTES = 3 << 20
"""Less than a frame may have, so that any entry can be sent."""
SHORT_BYTES = 16 << 10
"""What is longer is not remembered once it was read."""
LINK_TIMES = 4
"""What an entry takes that was read: so many times its bytes."""
NO_HEAD = Head(-1, "")
_encode = msgspec.msgpack.Encoder().encode


class Link(msgspec.Struct, frozen=True):
    """An entry with the hash that names it and the bytes that carry it."""

    entry: Entry
    hash: str
    encoded: bytes
    signed: Signed
    """What `encoded` says."""

    @property
    def head(self) -> Head:
        return Head(self.entry.position, self.hash)


def make_link(identity: Signer, run: RunId, head: Head, term: int, time_ms: int, body: Body) -> Link:
    """The next entry after `head`, signed. Raises `BadEntry` if it would be too long for anyone to read."""
    entry = Entry(
        run=run, position=head.position + 1, previous=head.hash, term=term, time_ms=time_ms, body=body
    )
    signed = sign(identity, entry)
    encoded = _encode(signed)
    if len(encoded) > MAX_ENTRY_BYTES:
        raise BadEntry(f"{len(encoded)} bytes, more than an entry may have")
    return Link(entry, digest(signed.payload), encoded, signed)


def read_link(encoded: bytes) -> Link:
    """Parse an entry. Raises `BadEntry` if the bytes are not one."""
    if len(encoded) > MAX_ENTRY_BYTES:
        raise BadEntry(f"{len(encoded)} bytes, more than an entry may have")
    if len(encoded) > SHORT_BYTES:
        return _read(encoded)
    known = _remembered.get(encoded)
    if known is None:
        known = _read(encoded)
        _remembered.put(encoded, known, LINK_TIMES * len(encoded))
    return known


def _read(encoded: bytes) -> Link:
    signed = parse(encoded, Signed)
    entry = parse(signed.payload, Entry) if signed else None
    if signed is None or entry is None:
        raise BadEntry("its bytes cannot be read as an entry")
    return Link(entry, digest(signed.payload), encoded, signed)


# Entries are read again when peers compare their logs, on replay, and by everybody who shares a process.
_remembered: Memo[bytes, Link] = Memo(2 << 20)


def genesis_of(entries: list[bytes]) -> Genesis | None:
    """What a log begins with; None where that cannot be read."""
    try:
        body = read_link(entries[0]).entry.body if entries else None
    except BadEntry:
        return None
    return body if isinstance(body, Genesis) else None


def check_signature(link: Link, public: bytes) -> bool:
    return verify(public, "Entry", link.signed.payload, link.signed.signature)


def check_link(link: Link, head: Head, term: int, run: RunId, public: bytes) -> None:
    """Raise `BadEntry` unless `link` is the coordinator's entry right after `head`."""
    entry = link.entry
    if entry.run != run:
        raise BadEntry(f"belongs to run {entry.run}, not {run}")
    if entry.position != head.position + 1:
        raise BadEntry(f"claims position {entry.position} where {head.position + 1} belongs")
    if entry.previous != head.hash:
        raise BadEntry("does not follow the entry before it: one of the two was altered, removed or moved")
    if entry.term < term:
        raise BadEntry(f"has term {entry.term} after term {term}")
    if not check_signature(link, public):
        raise BadEntry("is not signed by the run's coordinator")


def genesis_key(link: Link) -> bytes:
    """The coordinator's public key, from the first entry."""
    if not isinstance(link.entry.body, Genesis):
        raise BadEntry("is not a genesis entry")
    return link.entry.body.coordinator


class BadEntry(Exception):
    """An entry that cannot stand where it stands; the text completes "entry N ..."."""


@dataclass(frozen=True, slots=True)
class Equivocation:
    """Proof of misbehaviour: two entries, both signed by one coordinator, for one position of one run."""

    first: bytes
    second: bytes

    def holds(self, public: bytes) -> bool:
        """True if this convinces anyone who knows the coordinator's key."""
        try:
            one, two = read_link(self.first), read_link(self.second)
        except BadEntry:
            return False
        same_place = (one.entry.run, one.entry.position) == (two.entry.run, two.entry.position)
        signed = check_signature(one, public) and check_signature(two, public)
        return same_place and one.hash != two.hash and signed

    def error(self, coordinator: NodeId) -> ShoalError:
        position = read_link(self.first).entry.position
        return ShoalError(
            "SH-LOG-02",
            f"coordinator {coordinator[:12]} signed two different entries for position {position}",
            "this node has stopped and kept both as proof; ask the organiser, and do not rejoin this run",
        )


def find_equivocation(known: Link, other: Link, public: bytes) -> Equivocation | None:
    """The proof in two links for one position, if they differ and the coordinator signed both."""
    proof = Equivocation(known.encoded, other.encoded)
    return proof if proof.holds(public) else None
