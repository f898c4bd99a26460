"""Who leads, and what is final, where a majority of voters keeps a run's log. Pure.

In flow ballots, proposals and answers; out flow promises, and what an election or a proposal has come to. Invariant: an
entry is final once a majority of the voters of its position has stored it, and its leader has asked a majority of them
before. Two majorities have a voter in common, so a new leader is told of every entry that may be final.

The voters of a position are the run's coordinators (by address) and the members present in the log before it. An entry
moves one member at most, so the majorities of neighbouring positions have a voter in common, too: a leader asks once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from msgspec import structs

from shoal.base.ids import NodeId, RunId
from shoal.runlog.chain import NO_HEAD, Link, check_link, read_link
from shoal.runlog.entries import Entry, Joined, Left, Stopped
from shoal.wire.ballots import NO_BALLOT, AskVote, Ballot, Proposal, Propose, Stored, Vote
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, digest, open_signed, parse, sign


class Tail:
    """As much of a log as elections need: where it ends, and who votes on what comes next."""

    def __init__(self, run: RunId, public: bytes, coordinators: tuple[str, ...]) -> None:
        self._run, self._public, self._coordinators = run, public, coordinators
        self.head, self.term = NO_HEAD, 0
        self.members: set[NodeId] = set()
        """Everybody who ever joined."""
        self.stopped = False
        self._present: set[NodeId] = set()

    @property
    def length(self) -> int:
        return self.head.position + 1

    @property
    def voters(self) -> frozenset[str]:
        return frozenset({*self._coordinators, *self._present})

    def take(self, encoded: bytes) -> Link:
        """The next entry. Raises `BadEntry`; then nothing has changed."""
        link = read_link(encoded)
        check_link(link, self.head, self.term, self._run, self._public)
        match link.entry.body:
            case Joined(node=node):
                self.members.add(node)
                self._present.add(node)
            case Left(node=node):
                self._present.discard(node)
            case Stopped():
                self.stopped = True
        self.head, self.term = link.head, link.entry.term
        return link


def majority(voters: frozenset[str]) -> int:
    return len(voters) // 2 + 1


# --- a voter ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Box:
    """What a voter must not forget."""

    promised: Ballot = NO_BALLOT
    pending: Signed | None = None
    """The last proposal it stored: for the position after its log, or for one that its log has by now."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A voter's copy of the log, as it is durable."""

    run: RunId
    public: bytes | None
    """The coordinators' key; None while nothing of the log is here."""
    length: int
    hash_at: Callable[[int], str]
    page: Callable[[int], tuple[bytes, ...]]
    """Entries from a position on, as many as a message takes."""


def has_lost_entries(box: Box, copy: Copy) -> bool:
    """Whether the log is shorter than it was: a voter stores a proposal only right after its log, so that every entry
    before the last one it stored was there. It must not vote as if it had never stored those."""
    pending = parse(box.pending.payload, Proposal) if box.pending is not None else None
    return pending is not None and pending.position > copy.length


def vote(box: Box, ask: AskVote, copy: Copy) -> tuple[Box, Vote]:
    """A voter's answer to a candidate, and what it must remember before it gives it."""
    answer = Vote(
        run=ask.run,
        ballot=ask.ballot,
        asked=ask.length,
        granted=False,
        promised=box.promised,
        length=copy.length,
    )
    if ask.ballot < box.promised:
        return box, answer
    if copy.length > ask.length:
        return box, structs.replace(answer, entries=copy.page(ask.length))
    pending = read_proposal(box.pending, copy) if box.pending is not None else None
    relevant = pending is not None and pending.position == ask.length
    box = replace(box, promised=ask.ballot)
    return box, structs.replace(
        answer, granted=True, promised=ask.ballot, pending=box.pending if relevant else None
    )


def store(box: Box, propose: Propose, copy: Copy) -> tuple[Box, Stored]:
    """A voter's answer to a proposal, and what it must remember before it gives it."""
    proposal = read_proposal(propose.proposal, copy)
    if proposal is None:
        return box, _stored(copy, NO_BALLOT, -1, box, False)
    ballot, position = proposal.ballot, proposal.position
    if ballot < box.promised or position > copy.length:
        return box, _stored(copy, ballot, position, box, False)
    if position < copy.length:
        same = copy.hash_at(position) == digest(proposal.payload)
        return box, _stored(copy, ballot, position, box, same)
    box = Box(promised=ballot, pending=propose.proposal)
    return box, _stored(copy, ballot, position, box, True)


def _stored(copy: Copy, ballot: Ballot, position: int, box: Box, stored: bool) -> Stored:
    return Stored(
        run=copy.run,
        ballot=ballot,
        position=position,
        stored=stored,
        promised=box.promised,
        length=copy.length,
    )


def make_proposal(identity: Identity, run: RunId, ballot: Ballot, position: int, payload: bytes) -> Propose:
    proposal = Proposal(run=run, ballot=ballot, position=position, payload=payload)
    return Propose(run=run, proposal=sign(identity, proposal))


def read_proposal(signed: Signed, copy: Copy) -> Proposal | None:
    """The proposal inside, if it is signed with the coordinators' key and its payload is an entry for its place."""
    proposal = open_signed(signed, Proposal, copy.public) if copy.public is not None else None
    if proposal is None or proposal.run != copy.run:
        return None
    entry = parse(proposal.payload, Entry)
    fits = entry is not None and (entry.run, entry.position) == (proposal.run, proposal.position)
    return proposal if fits else None


# --- a leader -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Election:
    """A candidate's count of votes for one position. A coordinator's vote counts once, whatever its addresses."""

    voters: frozenset[str]
    ballot: Ballot
    length: int
    refused_by: Ballot = NO_BALLOT
    """The highest ballot that somebody has promised instead."""
    entries: tuple[bytes, ...] = ()
    """What a voter has of the log and the candidate has not."""
    pending: list[Signed] = field(default_factory=list)
    _granted: set[str] = field(default_factory=set)
    _names: set[str] = field(default_factory=set)

    def heard(self, voter: str, answer: Vote) -> None:
        if (answer.ballot, answer.asked) != (self.ballot, self.length) or voter in self._granted:
            return
        if answer.entries:  # Final ones, signed: from whomever they come.
            self.entries = self.entries or answer.entries
        elif voter not in self.voters:
            return
        elif not answer.granted:
            self.refused_by = max(self.refused_by, answer.promised)
        elif not answer.name or answer.name not in self._names:
            self._names.add(answer.name)
            self._granted.add(voter)
            self.pending += [answer.pending] if answer.pending is not None else []

    @property
    def won(self) -> bool:
        """A majority follows nobody with a lower ballot, and the candidate has heard what each of them has stored."""
        return len(self._granted) >= majority(self.voters) and not self.entries

    @property
    def decided(self) -> bool:
        return self.won or bool(self.entries) or self.refused_by > self.ballot

    def awaited(self) -> frozenset[str]:
        return self.voters - self._granted

    def to_finish(self, copy: Copy) -> Proposal | None:
        """Of what voters have stored for this position, the proposal with the highest ballot: it may be final, and is
        proposed again before anything else."""
        read = [read_proposal(signed, copy) for signed in self.pending]
        fitting = [one for one in read if one is not None and one.position == self.length]
        return max(fitting, key=lambda one: one.ballot, default=None)


@dataclass(slots=True)
class Tally:
    """A leader's count of those who have stored its proposal."""

    voters: frozenset[str]
    ballot: Ballot
    position: int
    refused_by: Ballot = NO_BALLOT
    _stored: set[str] = field(default_factory=set)
    _names: set[str] = field(default_factory=set)

    def heard(self, voter: str, answer: Stored) -> None:
        if voter not in self.voters:
            return
        self.refused_by = max(self.refused_by, answer.promised)
        mine = answer.stored and (answer.ballot, answer.position) == (self.ballot, self.position)
        if mine and (not answer.name or answer.name not in self._names):
            self._names.add(answer.name)
            self._stored.add(voter)

    @property
    def final(self) -> bool:
        return len(self._stored) >= majority(self.voters)

    def awaited(self) -> frozenset[str]:
        return self.voters - self._stored
