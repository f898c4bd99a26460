"""The hub's door: nobody is heard without the token, and no word costs more than it should."""

import os

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.host import Refused
from shoal.base.ids import BlobId, NodeId
from shoal.group.answering import Answering
from shoal.group.desk import Desk
from shoal.group.messages import Ask, Call, Enter, Idle, Reply, SayHello, SayNumbers, Task, read_reply
from shoal.runlog.entries import DataRange
from shoal.secagg.collector import Collector, Stage, Total
from shoal.secagg.messages import Keys, Refusal, Waiting
from shoal.secagg.terms import Terms, usual_threshold
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed

NUMEL = 1000
TASK = Task(
    base=BlobId("0" * 64), base_bytes=4, round=1, first_step=0, data=DataRange(0, 2), steps=1, batch=2
)


def identities(count: int) -> list[Identity]:
    made = [Identity(bytes([number + 1]) * 32) for number in range(count)]
    return sorted(made, key=lambda identity: identity.node)


def terms_of(members: list[Identity]) -> Terms:
    return Terms(
        group="f" * 32,
        hub="0" * 40,
        round=1,
        roster=tuple(identity.public for identity in members),
        threshold=usual_threshold(len(members)),
        numel=NUMEL,
        limit=8.0,
    )


class Hall:
    """A desk, its members, and a clock to turn."""

    def __init__(self, count: int = 4) -> None:
        self.now = 0.0
        self.blobs: dict[BlobId, bytes] = {}
        self.members = identities(count)
        self.desk = Desk(
            token="secret",
            now=lambda: self.now,
            read=self._read,
            size=lambda blob: len(self.blobs[blob]) if blob in self.blobs else None,
            admits=lambda node: node in {one.node for one in self.members},
        )

    def _read(self, blob: BlobId) -> bytes:
        if blob not in self.blobs:
            raise FileNotFoundError(blob)
        return self.blobs[blob]

    def put(self, who: Identity, said: msgspec.Struct) -> Reply:
        reply = read_reply(self.desk.put(msgspec.msgpack.encode(said), who.node))
        assert reply is not None
        return reply

    def enter(self) -> None:
        for member in self.members:
            self.put(member, Enter("secret", member.public))

    def begin(self) -> Collector:
        collector = Collector(terms_of(self.members))
        self.desk.begin(collector, {one.node: TASK for one in self.members})
        return collector


def test_nobody_is_heard_without_the_token() -> None:
    hall = Hall()
    member, stranger = hall.members[0], Identity(b"x" * 32)
    with pytest.raises(Refused, match="token first"):
        hall.put(member, Ask())
    with pytest.raises(Refused, match="SH-JOIN-02"):
        hall.put(member, Enter("guess", member.public))
    with pytest.raises(Refused, match="SH-JOIN-14"):
        hall.put(stranger, Enter("secret", stranger.public))
    with pytest.raises(Refused, match="SH-JOIN-14"):
        hall.put(member, Enter("secret", stranger.public))
    assert hall.desk.present() == []
    assert hall.put(member, Enter("secret", member.public)) == Idle("the hub is getting ready")
    assert hall.desk.present() == [member.public]


def test_who_is_unheard_is_not_waited_for() -> None:
    hall = Hall()
    hall.enter()
    hall.now = 10.0
    for member in hall.members[:3]:
        hall.put(member, Ask())
    hall.now = 20.0
    assert hall.desk.present() == [one.public for one in hall.members[:3]]
    collector = hall.begin()
    words = [Answering(one, collector.terms, os.urandom).hello() for one in hall.members[:3]]
    for member, word in zip(hall.members, words, strict=False):
        assert hall.desk.advance(late=False) == Stage.HELLOS
        assert isinstance(hall.put(member, Ask()), Call)
        assert isinstance(word, SayHello)
        hall.put(member, word)
    assert hall.desk.advance(late=False) == Stage.DEALS


def test_a_round_over_a_line_that_loses_requests_and_replies() -> None:
    hall = Hall(5)
    hall.enter()
    collector = hall.begin()
    random = np.random.default_rng(1)
    words = {one.node: random.integers(0, 2**32, NUMEL, dtype=np.uint32) for one in hall.members}
    sides = {one.node: Answering(one, collector.terms, random.bytes) for one in hall.members}
    said: dict[NodeId, object] = {node: side.hello() for node, side in sides.items()}
    for _ in range(500):
        if hall.desk.advance(late=False) >= Stage.SUM:
            break
        for member in hall.members:
            word, side = said[member.node], sides[member.node]
            assert isinstance(word, msgspec.Struct)
            lost = int(random.integers(3))
            reply = hall.put(member, word) if lost != 1 else None
            heard = reply is not None and lost != 2
            said[member.node] = _next(hall, side, reply, words[member.node]) if heard and reply else Ask()
    total = hall.desk.finish()
    assert isinstance(total, Total) and len(total.survivors) == 5
    assert np.array_equal(total.words, sum(words.values(), np.zeros(NUMEL, dtype=np.uint32)))
    assert len(hall.desk.end("done")) == 5


def _next(hall: Hall, side: Answering, reply: Reply, words: np.ndarray) -> object:
    if side.is_for_numbers(reply):
        assert side.receive(reply) is None
        made = side.mask(lambda: words)
        assert not isinstance(made, Refusal)
        blob = BlobId(f"{len(hall.blobs):064x}")
        hall.blobs[blob] = made.numbers
        return side.keep(SayNumbers(made.signed, blob))
    return side.answer(reply)


def test_numbers_that_nobody_signed_are_refused() -> None:
    hall = Hall()
    hall.enter()
    hall.begin()
    nothing = SayNumbers(Signed(b"", b""), "f" * 64)
    assert isinstance(hall.put(hall.members[0], nothing), Call), "too early: nothing is taken"
    hall.desk._round.stage = Stage.NUMBERS  # type: ignore[union-attr]
    hall.desk._round._statements[Stage.DEALS] = {hall.members[0].node: Signed(b"", b"")}  # type: ignore[union-attr]
    with pytest.raises(Refused, match="no masked numbers"):
        hall.put(hall.members[0], nothing)


def test_a_forged_hello_is_refused_and_a_late_one_changes_nothing() -> None:
    hall = Hall()
    hall.enter()
    with pytest.raises(Refused, match="hellos of this round"):
        hall.begin()
        hall.put(hall.members[0], SayHello(Signed(b"\x80", bytes(64))))
    hall.desk.end("over for now")
    assert hall.put(hall.members[0], SayHello(Signed(b"", b""))) == Idle("over for now")


def test_who_spoilt_a_round_is_not_let_in_again() -> None:
    hall = Hall()
    hall.enter()
    spoiler = hall.members[1]
    hall.desk.dismiss(spoiler.node)
    assert spoiler.public not in hall.desk.present() and len(hall.desk.present()) == 3
    with pytest.raises(Refused, match="token first"):
        hall.put(spoiler, Ask())
    with pytest.raises(Refused, match="SH-JOIN-13"):
        hall.put(spoiler, Enter("secret", spoiler.public))


def test_whoever_comes_in_the_middle_of_a_round_waits_for_the_next() -> None:
    hall = Hall(5)
    late = hall.members[4]
    for member in hall.members[:4]:
        hall.put(member, Enter("secret", member.public))
    collector = Collector(terms_of(hall.members[:4]))
    hall.desk.begin(collector, {one.node: TASK for one in hall.members[:4]})
    assert isinstance(hall.put(late, Enter("secret", late.public)), Idle | Waiting)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_hostile_bodies_are_refused(body: bytes) -> None:
    hall = Hall()
    try:
        hall.desk.put(body, NodeId(hall.members[0].node))
    except Refused:
        return
    raise AssertionError("nobody has entered")


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_hostile_replies_are_nothing_or_something_that_a_hub_says(body: bytes) -> None:
    reply = read_reply(body)
    assert reply is None or isinstance(reply, msgspec.Struct)


def test_replies_beyond_the_limits_are_not_read() -> None:
    many = Keys(tuple(Signed(b"", b"") for _ in range(200)))
    assert read_reply(msgspec.msgpack.encode(many)) is None
    assert read_reply(bytes(50_000_000)) is None
    small = Keys((Signed(b"", b""),))
    assert read_reply(msgspec.msgpack.encode(small)) == small
