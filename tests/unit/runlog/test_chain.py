import msgspec
import pytest

from shoal.runlog.chain import (
    MAX_ENTRY_BYTES,
    BadEntry,
    Equivocation,
    check_link,
    find_equivocation,
    genesis_key,
    make_link,
    read_link,
)
from shoal.runlog.entries import Head, Rewind, Stopped
from shoal.wire.messages import MAX_FRAME_BYTES, Entries, encode
from shoal.wire.signed import Signed

from .small_log import COORDINATOR, NODES, OTHER_RUN, RUN, STRANGER, Clerk, whole_story

HEAD = Head(4, "h" * 64)


def test_a_link_reads_back_as_it_was_made() -> None:
    link = make_link(COORDINATOR, RUN, HEAD, 3, 17, Stopped(reason="done"))
    assert read_link(link.encoded) == link
    assert (link.entry.position, link.entry.previous, link.head) == (5, HEAD.hash, Head(5, link.hash))
    check_link(link, HEAD, 3, RUN, COORDINATOR.public)


@pytest.mark.parametrize(
    ("head", "term", "run", "public", "why"),
    [
        (HEAD, 3, OTHER_RUN, COORDINATOR.public, "belongs to run"),
        (Head(5, HEAD.hash), 3, RUN, COORDINATOR.public, "claims position 5 where 6 belongs"),
        (Head(4, "x"), 3, RUN, COORDINATOR.public, "does not follow"),
        (HEAD, 4, RUN, COORDINATOR.public, "has term 3 after term 4"),
        (HEAD, 3, RUN, STRANGER.public, "is not signed by the run's coordinator"),
        (HEAD, 3, RUN, b"", "is not signed by the run's coordinator"),
    ],
)
def test_every_way_not_to_follow_is_named(head: Head, term: int, run, public: bytes, why: str) -> None:
    link = make_link(COORDINATOR, RUN, HEAD, 3, 17, Stopped(reason="done"))
    with pytest.raises(BadEntry, match=why):
        check_link(link, head, term, run, public)


def test_a_signature_of_another_kind_of_statement_does_not_pass() -> None:
    link = make_link(COORDINATOR, RUN, HEAD, 3, 17, Stopped(reason="done"))
    payload = msgspec.msgpack.decode(link.encoded, type=Signed).payload
    forged = msgspec.msgpack.encode(Signed(payload, COORDINATOR.sign("Claim", payload)))
    with pytest.raises(BadEntry, match="not signed"):
        check_link(read_link(forged), HEAD, 3, RUN, COORDINATOR.public)


def test_oversized_and_garbage_entries_are_refused() -> None:
    with pytest.raises(BadEntry, match="more than an entry may have"):
        read_link(bytes(MAX_ENTRY_BYTES + 1))
    with pytest.raises(BadEntry, match="cannot be read"):
        read_link(b"\xc1")


def test_an_entry_that_nobody_could_read_is_not_made() -> None:
    """Every entry fits a frame of the wire, and what is made can be read."""
    link = make_link(COORDINATOR, RUN, HEAD, 3, 17, Stopped(reason="x" * (MAX_ENTRY_BYTES - 500)))
    assert read_link(link.encoded) == link
    assert len(encode(Entries(items=(link.encoded,)))) <= MAX_FRAME_BYTES
    with pytest.raises(BadEntry, match="more than an entry may have"):
        make_link(COORDINATOR, RUN, HEAD, 3, 17, Stopped(reason="x" * MAX_ENTRY_BYTES))


def test_the_key_comes_from_genesis_only() -> None:
    story = whole_story()
    assert genesis_key(story.links[0]) == COORDINATOR.public
    with pytest.raises(BadEntry, match="is not a genesis entry"):
        genesis_key(story.links[1])


def _two_for_one_place() -> tuple[Clerk, Equivocation]:
    clerk = Clerk()
    clerk.found()
    one, two = clerk.make(Stopped(reason="one")), clerk.make(Stopped(reason="two"))
    return clerk, Equivocation(one.encoded, two.encoded)


def test_two_signed_entries_for_one_position_are_a_proof() -> None:
    _, proof = _two_for_one_place()
    assert proof.holds(COORDINATOR.public)
    error = proof.error(COORDINATOR.node)
    assert error.code == "SH-LOG-02" and "position 1" in error.cause and error.next_step


def test_what_is_no_proof() -> None:
    clerk, proof = _two_for_one_place()
    assert not proof.holds(STRANGER.public)
    assert not Equivocation(proof.first, proof.first).holds(COORDINATOR.public)
    assert not Equivocation(proof.first, b"noise").holds(COORDINATOR.public)
    clerk.append(Rewind(to=0, reason="asked"))
    elsewhere = clerk.make(Stopped(reason="one"))
    assert not Equivocation(proof.first, elsewhere.encoded).holds(COORDINATOR.public)
    forger = Clerk(identity=STRANGER, view=clerk.view)
    assert not Equivocation(elsewhere.encoded, forger.make(Stopped(reason="x")).encoded).holds(
        COORDINATOR.public
    )
    other_run = Clerk(run=OTHER_RUN, view=clerk.view).make(Stopped(reason="two"))
    assert not Equivocation(elsewhere.encoded, other_run.encoded).holds(COORDINATOR.public)


def test_find_equivocation() -> None:
    _, proof = _two_for_one_place()
    one, two = read_link(proof.first), read_link(proof.second)
    assert find_equivocation(one, two, COORDINATOR.public) == proof
    assert find_equivocation(one, one, COORDINATOR.public) is None


def test_two_seals_for_one_position_are_a_proof() -> None:
    clerk = Clerk()
    clerk.found()
    clerk.join(*NODES[:2])
    clerk.plan(*NODES[:2])
    both, alone = clerk.make(clerk.seal_body(*NODES[:2])), clerk.make(clerk.seal_body(NODES[0]))
    assert Equivocation(both.encoded, alone.encoded).holds(COORDINATOR.public)
