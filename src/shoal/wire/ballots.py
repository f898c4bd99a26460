"""What coordinators and members say to one another where the log is kept by a majority of them.

In flow votes asked for and entries proposed; out flow the answers. Invariant: a proposal carries the entry's exact
bytes under another signature than an entry has, so that a signed entry is one that a majority keeps, and two of them
for one position remain a proof of misbehaviour.
"""

from __future__ import annotations

import msgspec

from shoal.base.ids import RunId
from shoal.wire.signed import Signed


class Ballot(msgspec.Struct, frozen=True, array_like=True, order=True, forbid_unknown_fields=True):
    """One attempt to lead: a term, and who makes it. Of two, the later stands above the earlier."""

    term: int
    leader: str
    """Drawn anew at every start of a coordinator, so that no two attempts are the same."""


NO_BALLOT = Ballot(0, "")


class Proposal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry that a leader wants kept at a position, signed by it."""

    run: RunId
    ballot: Ballot
    position: int
    payload: bytes
    """The entry's, as it will be signed once a majority has it."""


class AskVote(msgspec.Struct, frozen=True, kw_only=True, tag="ask-vote"):
    """A coordinator wants to lead: promise to follow nobody with a lower ballot, and say what you have."""

    run: RunId
    ballot: Ballot
    length: int
    """How many entries of the log it has."""


class Vote(msgspec.Struct, frozen=True, kw_only=True, tag="vote"):
    """The answer: `granted` is a promise, durable."""

    run: RunId
    ballot: Ballot
    asked: int
    """The candidate's length."""
    granted: bool
    promised: Ballot
    length: int
    entries: tuple[bytes, ...] = ()
    """What the candidate lacks of the log, a page of it; then nothing is promised, and it asks again."""
    pending: Signed | None = None
    """The proposal for the candidate's next position that this voter has accepted, if any."""
    name: str = ""
    """Of a coordinator's vote: its home's, so that none is counted twice."""


class Propose(msgspec.Struct, frozen=True, kw_only=True, tag="propose"):
    run: RunId
    proposal: Signed


class Stored(msgspec.Struct, frozen=True, kw_only=True, tag="stored"):
    """The answer to a proposal: `stored` means that it is durable here."""

    run: RunId
    ballot: Ballot
    position: int
    stored: bool
    promised: Ballot
    length: int
    """How many entries of the log this voter has; it takes a proposal for the next one only."""
    name: str = ""


class Known(msgspec.Struct, frozen=True, array_like=True):
    """How much of a run a coordinator has."""

    run: RunId
    length: int
    kept: str
    """The hash of the small values that stand-bys copy."""


class FollowProof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Signed with the coordinators' common key: whoever follows has it."""

    nonce: bytes
    name: str


class Follow(msgspec.Struct, frozen=True, kw_only=True, tag="follow"):
    """One coordinator to another, twice a second: what do you have that I have not?"""

    name: str
    proof: Signed
    runs: tuple[Known, ...]


class News(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a coordinator has of a run, for one that has less."""

    run: RunId
    leads: Ballot | None
    """Its ballot, if it leads."""
    entries: tuple[bytes, ...]
    kept: tuple[tuple[str, bytes], ...] | None = None
    """The small values, where they differ."""


class Followed(msgspec.Struct, frozen=True, kw_only=True, tag="followed"):
    name: str
    blobs: str
    """Where its blobs are served."""
    runs: tuple[News, ...]
