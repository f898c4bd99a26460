from typing import get_args

import msgspec
import pytest

from shoal.base.errors import ShoalError
from shoal.wire import messages as m
from shoal.wire.ballots import (
    NO_BALLOT,
    AskVote,
    Ballot,
    Follow,
    Followed,
    Known,
    News,
    Propose,
    Stored,
    Vote,
)
from shoal.wire.signed import Signed

SIGNED = Signed(b"payload", b"s" * 64)
EACH: list[m.Message] = [
    m.Challenge(protocol=1, coordinator="c", nonce=b"n"),  # type: ignore[arg-type]
    m.Hello(
        protocol=1,
        run="r",  # type: ignore[arg-type]
        public=b"p",
        token="t",
        name="ö",
        address="",
        length=3,
        proof=SIGNED,
    ),
    m.Welcome(run="r", heartbeat_s=2.0, length=9),  # type: ignore[arg-type]
    m.Refuse(code="SH-JOIN-02", cause="c", next_step="n"),
    m.Peers(edition=1 << 40, peers=(m.PeerAddress("n", "h:1"),)),  # type: ignore[arg-type]
    m.Peers(edition=9, peers=(), since=8, gone=("n",)),  # type: ignore[arg-type]
    m.Entries(items=(b"one", b"")),
    m.NeedEntries(start=4),
    m.Heartbeat(at=-1, length=0, peers=0, doing="x"),
    m.Beat(length=3),
    m.Offer(claim=SIGNED, receipts=(SIGNED, SIGNED)),
    m.ClaimAck(sequence=1, kept=True, reason=""),
    m.Attest(attestation=SIGNED),
    m.Folded(word=SIGNED),
    m.Audited(verdict=SIGNED),
    m.Stuck(at=3, blob="b", seconds=1.5),  # type: ignore[arg-type]
    m.Rebuild(at=3),
    m.PleasePush(blob="b"),  # type: ignore[arg-type]
    m.Paid(receipt=b"signed"),
    m.Goodbye(reason="night"),
    AskVote(run="r", ballot=Ballot(2, "x"), length=3),  # type: ignore[arg-type]
    Vote(
        run="r",  # type: ignore[arg-type]
        ballot=Ballot(2, "x"),
        asked=3,
        granted=True,
        promised=Ballot(2, "x"),
        length=3,
        entries=(b"one",),
        pending=SIGNED,
    ),
    Propose(run="r", proposal=SIGNED),  # type: ignore[arg-type]
    Stored(
        run="r",  # type: ignore[arg-type]
        ballot=Ballot(2, "x"),
        position=3,
        stored=True,
        promised=NO_BALLOT,
        length=3,
        name="n",
    ),
    Follow(name="n", proof=SIGNED, runs=(Known("r", 3, "h"),)),  # type: ignore[arg-type]
    Followed(
        name="n",
        blobs="h:1",
        runs=(News(run="r", leads=Ballot(2, "x"), entries=(b"one",), kept=(("k", b"v"),)),),  # type: ignore[arg-type]
    ),
]


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
def test_every_message_travels(message: m.Message) -> None:
    assert m.decode(m.encode(message)) == message


def test_every_message_is_tried() -> None:
    assert {type(message) for message in EACH} == set(get_args(m.Message))


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("protocol", [0, 3, 99])
def test_a_frame_of_another_version_never_becomes_a_message(message: m.Message, protocol: int) -> None:
    frame = bytearray(m.encode(message))
    assert frame[1] == m.PROTOCOL
    frame[1] = protocol
    with pytest.raises(ShoalError) as caught:
        m.decode(bytes(frame))
    assert caught.value.code == "SH-JOIN-06" and str(protocol) in caught.value.cause


def test_another_versions_unknown_message_is_told_as_such() -> None:
    frame = msgspec.msgpack.encode((7, {"type": "warp", "factor": 9}))
    with pytest.raises(ShoalError, match="SH-JOIN-06"):
        m.decode(frame)


GARBAGE = {
    "empty": b"",
    "cut": m.encode(EACH[1])[:-1],
    "longer": m.encode(EACH[8]) + b"\0",
    "no frame": msgspec.msgpack.encode({"type": "beat", "length": 1}),
    "unknown type": msgspec.msgpack.encode((1, {"type": "warp"})),
    "no type": msgspec.msgpack.encode((1, {"length": 1})),
    "wrong field": msgspec.msgpack.encode((1, {"type": "beat", "length": "long"})),
    "missing field": msgspec.msgpack.encode((1, {"type": "beat"})),
    "not UTF-8": m.encode(m.Goodbye(reason="aaaa")).replace(b"aaaa", b"\xff\xfe\xfd\xfc"),
    "deep": b"\x92\x01" + b"\x91" * 100_000 + b"\x90",
    "deep unknown field": b"\x92\x01\x83"
    + b"".join(map(msgspec.msgpack.encode, ["type", "beat", "length", 1, "x"]))
    + b"\x91" * 100_000
    + b"\x90",
    "too large": bytes(m.MAX_FRAME_BYTES + 1),
}


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_has_a_code_a_cause_and_a_next_step(case: str) -> None:
    with pytest.raises(ShoalError) as caught:
        m.decode(GARBAGE[case])
    assert caught.value.code == "SH-WIRE-01" and caught.value.cause and caught.value.next_step


def test_nobody_sends_what_nobody_takes() -> None:
    with pytest.raises(ShoalError, match="SH-WIRE-01"):
        m.encode(m.Entries(items=(bytes(m.MAX_FRAME_BYTES),)))
