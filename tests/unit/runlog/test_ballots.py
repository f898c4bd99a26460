"""Leading by majority, without any world: what may become final, whatever is lost, late or repeated."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from shoal.base.ids import RunId
from shoal.runlog.ballots import Box, Copy, Election, Tail, Tally, majority, make_proposal, store, vote
from shoal.runlog.chain import NO_HEAD, make_link
from shoal.runlog.entries import Entry, Left
from shoal.runlog.files import FileLogStore
from shoal.runlog.voter import RECORD, Voter, is_record
from shoal.wire.ballots import NO_BALLOT, AskVote, Ballot, Propose, Stored, Vote
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, digest, open_signed, parse
from shoal.worlds.real.sqlstore import SqlLogStore
from shoal.worlds.simulated.disk import SimDisk

from .small_log import COORDINATOR, NODES, RUN, STRANGER, Clerk

ADDRESSES = ("one:1", "two:1")
FIRST, SECOND = Ballot(2, "one"), Ballot(3, "two")


def _payload(word: str, position: int = 0, identity: Identity = COORDINATOR) -> bytes:
    """An entry for a position, as it is proposed."""
    head = NO_HEAD if position == 0 else msgspec.structs.replace(NO_HEAD, position=position - 1)
    link = make_link(identity, RUN, head, 1, 0, Left(node=NODES[0].node, reason=word))
    signed = parse(link.encoded, Signed)
    assert signed is not None
    return signed.payload


@dataclass
class _Replica:
    """A voter without a disk."""

    log: list[bytes] = field(default_factory=list)
    box: Box = field(default_factory=Box)

    @property
    def copy(self) -> Copy:
        return Copy(
            RUN,
            COORDINATOR.public,
            len(self.log),
            lambda position: digest(self.log[position]),
            lambda start: tuple(self.log[start:]),
        )

    def ask(self, ballot: Ballot, length: int) -> Vote:
        self.box, answer = vote(self.box, AskVote(run=RUN, ballot=ballot, length=length), self.copy)
        return answer

    def propose(self, ballot: Ballot, position: int, payload: bytes) -> Stored:
        self.box, answer = store(
            self.box, make_proposal(COORDINATOR, RUN, ballot, position, payload), self.copy
        )
        return answer


def test_a_promise_keeps_earlier_leaders_out() -> None:
    voter = _Replica()
    assert voter.ask(SECOND, 0).granted
    refused = voter.ask(FIRST, 0)
    assert not refused.granted and refused.promised == SECOND
    assert not voter.propose(FIRST, 0, _payload("old")).stored
    assert voter.propose(SECOND, 0, _payload("new")).stored


def test_a_new_leader_is_told_what_may_be_final() -> None:
    voter = _Replica()
    assert voter.propose(FIRST, 0, _payload("first")).stored
    answer = voter.ask(SECOND, 0)
    election = Election(frozenset({"one:1"}), SECOND, 0)
    election.heard("one:1", answer)
    unfinished = election.to_finish(voter.copy)
    assert election.won and unfinished is not None and unfinished.payload == _payload("first")


def test_a_voter_stores_what_follows_its_log_and_nothing_else() -> None:
    voter = _Replica()
    early = voter.propose(FIRST, 1, _payload("second", 1))
    assert not early.stored and early.length == 0, "or the entry before it might be kept by nobody"
    voter.log.append(_payload("first"))
    assert voter.propose(FIRST, 1, _payload("second", 1)).stored
    assert voter.propose(FIRST, 0, _payload("first")).stored, "what its log has, it has stored"
    assert not voter.propose(FIRST, 0, _payload("other")).stored


def test_a_candidate_that_is_behind_is_given_the_log_first() -> None:
    voter = _Replica(log=[_payload("first")])
    answer = voter.ask(FIRST, 0)
    assert not answer.granted and answer.entries == (_payload("first"),) and voter.box.promised == NO_BALLOT
    election = Election(frozenset({"one:1"}), FIRST, 0)
    election.heard("a stranger", answer)
    assert election.decided and not election.won and election.entries


def test_a_late_answer_about_another_position_counts_for_nothing() -> None:
    voter, election = _Replica(), Election(frozenset({"one:1"}), FIRST, 1)
    election.heard("one:1", voter.ask(FIRST, 0))
    assert not election.won


def test_one_coordinator_under_two_addresses_counts_once() -> None:
    tally = Tally(frozenset({"one:1", "alias:1", "two:1"}), FIRST, 0)
    said = msgspec.structs.replace(_Replica().propose(FIRST, 0, _payload("x")), name="same home")
    for address in ("one:1", "alias:1"):
        tally.heard(address, said)
    assert not tally.final


@pytest.mark.parametrize("wrong", ["key", "run", "place"])
def test_nobody_can_forge_a_proposal(wrong: str) -> None:
    identity = STRANGER if wrong == "key" else COORDINATOR
    run = RunId("2" * 32) if wrong == "run" else RUN
    position = 5 if wrong == "place" else 0
    propose = make_proposal(identity, run, FIRST, position, _payload("x"))
    propose = msgspec.structs.replace(propose, run=RUN)
    box, answer = store(Box(), propose, _Replica().copy)
    assert not answer.stored and box == Box()


def test_voters_are_the_coordinators_and_the_members_present() -> None:
    clerk = Clerk()
    clerk.found()
    clerk.join(*NODES[:3])
    clerk.append(Left(node=NODES[1].node, reason="night"))
    tail = Tail(RUN, COORDINATOR.public, ADDRESSES)
    for encoded in clerk.entries:
        tail.take(encoded)
    assert tail.voters == {*ADDRESSES, NODES[0].node, NODES[2].node} and tail.length == 5
    assert len(tail.members) == 3 and majority(tail.voters) == 3


def test_what_was_promised_survives_a_crash_and_damage_is_not_taken_for_nothing() -> None:
    disk = SimDisk()
    log = FileLogStore(disk, lambda point: None)
    voter = Voter(log, RUN, lambda: COORDINATOR.public)
    assert isinstance(voter.answer(AskVote(run=RUN, ballot=SECOND, length=0)), Vote)
    proposed = make_proposal(COORDINATOR, RUN, SECOND, 0, _payload("x"))
    answer = voter.answer(proposed)
    assert isinstance(answer, Stored) and answer.stored
    disk.crash(random.Random(1))
    again = Voter(FileLogStore(disk, lambda point: None), RUN, lambda: COORDINATOR.public)
    refused = again.answer(AskVote(run=RUN, ballot=FIRST, length=0))
    assert isinstance(refused, Vote) and not refused.granted
    granted = again.answer(AskVote(run=RUN, ballot=Ballot(4, ""), length=0))
    assert isinstance(granted, Vote) and granted.pending == proposed.proposal
    kept = log.kept(RUN, RECORD)[RECORD]
    log.keep(RUN, RECORD, kept[:-1] + bytes([kept[-1] ^ 1]))
    assert is_record(kept) and not is_record(log.kept(RUN, RECORD)[RECORD])
    damaged = Voter(log, RUN, lambda: COORDINATOR.public)
    assert damaged.answer(AskVote(run=RUN, ballot=Ballot(9, ""), length=0)) is None


def test_a_voter_that_has_lost_entries_abstains_until_it_has_them_again() -> None:
    log = FileLogStore(SimDisk(), lambda point: None)
    voter = Voter(log, RUN, lambda: COORDINATOR.public)
    ask = AskVote(run=RUN, ballot=SECOND, length=0)
    for position in range(2):
        log.append(RUN, position, b"entry")
    answer = voter.answer(make_proposal(COORDINATOR, RUN, FIRST, 2, _payload("third", 2)))
    assert isinstance(answer, Stored) and answer.stored

    log.set_aside(RUN)
    assert voter.answer(ask) is None, "its own vote may have made one of these entries final"
    assert voter.answer(make_proposal(COORDINATOR, RUN, SECOND, 0, _payload("another"))) is None
    for position in range(2):
        log.append(RUN, position, b"entry")
    assert isinstance(voter.answer(ask), Vote)


def test_a_record_that_a_store_finds_altered_is_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    log = SqlLogStore(f"sqlite:///{path}")
    assert Voter(log, RUN, lambda: COORDINATOR.public).answer(AskVote(run=RUN, ballot=FIRST, length=0))
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE shoal_kept SET value = CAST('rot' AS BLOB)")
    assert (
        Voter(log, RUN, lambda: COORDINATOR.public).answer(AskVote(run=RUN, ballot=FIRST, length=0)) is None
    )
    log.close()


# --- every order of events ------------------------------------------------------------------------------


class _Candidate:
    """A coordinator that tries to lead, as `coordinator.electing` does, one message at a time."""

    def __init__(self, name: str, voters: dict[str, _Replica], final: dict[int, bytes]) -> None:
        self.name, self.voters, self.final = name, voters, final
        self.log: list[bytes] = []
        self.term = 0
        self.counting: Election | Tally | None = None
        self.proposing = b""

    def act(self, rng: random.Random) -> None:
        if self.counting is None or rng.random() < 0.05:
            self.term += rng.randint(1, 3)
            self.ballot = Ballot(self.term, self.name)
            self.counting = Election(frozenset(self.voters), self.ballot, len(self.log))
        voter = rng.choice(sorted(self.voters))
        if rng.random() < 0.3:
            return  # The question, or its answer, is lost.
        if isinstance(self.counting, Election):
            self._elect(voter, self.counting)
        else:
            self._commit(voter, self.counting)

    def _elect(self, voter: str, election: Election) -> None:
        answer = self.voters[voter].ask(self.ballot, election.length)
        election.heard(voter, answer)
        self.term = max(self.term, answer.promised.term)
        if election.entries:
            self.log += election.entries
            self.counting = Election(frozenset(self.voters), self.ballot, len(self.log))
        elif election.won:
            unfinished = election.to_finish(self.voters[voter].copy)
            word = f"{self.name} {self.ballot.term}"
            self._propose(unfinished.payload if unfinished else _payload(word, len(self.log)))

    def _propose(self, payload: bytes) -> None:
        self.proposing = payload
        self.counting = Tally(frozenset(self.voters), self.ballot, len(self.log))

    def _commit(self, voter: str, tally: Tally) -> None:
        answer = self.voters[voter].propose(self.ballot, tally.position, self.proposing)
        tally.heard(voter, answer)
        if not answer.stored and answer.length < tally.position:
            self.voters[voter].log[:] = self.log
        if tally.final:
            known = self.final.setdefault(tally.position, self.proposing)
            assert known == self.proposing, f"two entries are final at {tally.position}"
            self.log.append(self.proposing)
            self._propose(_payload(f"{self.name} {self.ballot.term}", len(self.log)))


@pytest.mark.parametrize("seed", range(60))
def test_never_two_entries_for_one_position(seed: int) -> None:
    rng = random.Random(seed)
    voters = {f"v{number}": _Replica() for number in range(rng.choice([1, 2, 3, 4, 5]))}
    final: dict[int, bytes] = {}
    candidates = [_Candidate(f"c{number}", voters, final) for number in range(3)]
    for _ in range(400):
        rng.choice(candidates).act(rng)
        if rng.random() < 0.1:
            _learn(rng.choice(list(voters.values())), final)
    assert final, "nothing was decided"
    assert sorted(final) == list(range(len(final)))


def _learn(replica: _Replica, final: dict[int, bytes]) -> None:
    """A voter is told of the next entry that is final."""
    if len(replica.log) in final:
        replica.log.append(final[len(replica.log)])


def test_a_proposal_is_no_entry() -> None:
    """So that nobody can show it beside an entry as a proof of misbehaviour."""
    propose: Propose = make_proposal(COORDINATOR, RUN, FIRST, 0, _payload("x"))
    assert open_signed(propose.proposal, Entry, COORDINATOR.public) is None
