"""Everything that reads bytes of strangers, on noise and on mutated good bytes: an answer or a refusal."""

import random
import string

import msgspec
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.base.layout import make_layout
from shoal.codec import CODECS
from shoal.replica.blobs import ChunkList, chunk_list, read_chunk_list
from shoal.replica.fold import FoldRules, SealedBlob, fold
from shoal.replica.serving import PutReply
from shoal.replica.state import decode_state, encode_state, initial_state
from shoal.replica.update import encode_update, open_update
from shoal.runlog.chain import NO_HEAD, BadEntry, make_link, read_link
from shoal.runlog.entries import Attestation, Claim, DataRange, Entry, Head, Left, Receipt
from shoal.runlog.view import verify_log
from shoal.strategy.pieces import Strategy
from shoal.strategy.presets import expand
from shoal.wire import messages as m
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, parse, sign
from shoal.wire.ticket import PREFIX, Ticket, read_ticket, show_ticket

from .modest import many, modest

ONE = Identity(b"1" * 32)
RUN = RunId("r" * 32)
CLAIM = Claim(
    run=RUN,
    node=ONE.node,
    sequence=3,
    round=2,
    plan=4,
    head=Head(5, "h"),
    base=((0, 1), (1, 1)),
    steps=3,
    samples=6,
    tokens=6,
    data=(DataRange(0, 6),),
    local_before="b",
    local_after="a",
    blob=BlobId("b" * 64),
    size_bytes=7,
    loss=0.5,
)
RECEIPT = Receipt(run=RUN, holder=ONE.node, blob=BlobId("b" * 64), size_bytes=1)
WORD = Attestation(run=RUN, node=ONE.node, at=Head(1, "h"), state="s")
LINK = make_link(ONE, RUN, NO_HEAD, 1, 5, Left(node=ONE.node, reason="ö" * 20))
FRAMES = [
    m.encode(m.Offer(claim=sign(ONE, CLAIM), receipts=(sign(ONE, RECEIPT),))),
    m.encode(m.Entries(items=(LINK.encoded,))),
    m.encode(m.Heartbeat(at=3, length=9, peers=1, doing="training", loss=0.25)),
    m.encode(m.Peers(edition=3, peers=(m.PeerAddress(ONE.node, "host:1"),))),
    m.encode(m.Refuse(code="SH-JOIN-02", cause="wörter", next_step="n")),
]
LAYOUT = make_layout([("a", (5,)), ("b", (5,))], 2)
STATE = initial_state(LAYOUT, torch.linspace(-1, 1, 10), ("momentum",))
DATA = random.Random(2).randbytes(3000)


@st.composite
def mutations(draw: st.DrawFn, good: list[bytes]) -> bytes:
    """A good message with some bytes changed, cut out, doubled or put in."""
    data = bytearray(draw(st.sampled_from(good)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["set", "cut", "insert", "double", "tail"])):
            case "set" if at < len(data):
                data[at] = draw(st.sampled_from([0, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xFF, data[at] ^ 1]))
            case "cut":
                del data[at : at + draw(st.integers(1, 8))]
            case "insert":
                data[at:at] = draw(st.binary(max_size=8))
            case "double":
                data[at:at] = data[at : at + 16]
            case "tail":
                data += draw(st.binary(max_size=8))
    return bytes(data)


@many
@given(st.one_of(st.binary(max_size=200), mutations(FRAMES)))
def test_frames(frame: bytes) -> None:
    try:
        message = m.decode(frame)
    except ShoalError as error:
        assert error.code in ("SH-WIRE-01", "SH-JOIN-06")
    else:
        assert m.decode(m.encode(message)) == message or "nan" in repr(message)


@many
@given(
    st.sampled_from([Claim, Receipt, Attestation, Signed, Entry, PutReply, m.Offer, m.Proof]),
    st.one_of(
        st.binary(max_size=150),
        mutations(
            [msgspec.msgpack.encode(value) for value in (CLAIM, RECEIPT, WORD, sign(ONE, CLAIM), LINK.entry)]
        ),
    ),
)
def test_statements(kind: type, payload: bytes) -> None:
    value = parse(payload, kind)
    assert value is None or isinstance(value, kind)


@many
@given(st.one_of(st.binary(max_size=150), mutations([LINK.encoded])))
def test_entries(encoded: bytes) -> None:
    try:
        link = read_link(encoded)
    except BadEntry as error:
        assert str(error)
    else:
        assert link.encoded == encoded
    view, finding = verify_log([encoded])
    assert finding is not None and finding.position == 0 and view.genesis is None


TICKET = show_ticket(Ticket(NodeId("c" * 40), ("host:1",), RUN, "secret"))
LETTERS = string.ascii_letters + string.digits + "-_=+/ \n!ö"


@many
@given(
    st.one_of(
        st.text(max_size=60),
        st.text(LETTERS, max_size=80).map(lambda text: PREFIX + text),
        mutations([TICKET.encode()]).map(lambda raw: raw.decode("utf-8", "replace")),
        mutations([msgspec.msgpack.encode(("c", ["h"], "r", "t"))]).map(
            lambda raw: show_ticket(msgspec.Raw(raw))  # type: ignore[arg-type]
        ),
    )
)
@example(PREFIX + "\ud800")
def test_tickets(text: str) -> None:
    try:
        ticket = read_ticket(text)
    except ShoalError as error:
        assert error.code == "SH-JOIN-01"
    else:
        assert isinstance(ticket, Ticket)


@many
@given(st.one_of(st.binary(max_size=150), mutations([chunk_list(DATA).encode()])), st.booleans())
def test_chunk_lists(raw: bytes, own: bool) -> None:
    good = chunk_list(DATA)
    found = read_chunk_list(raw, good.blob)
    assert found is None or (found == good and raw == good.encode())
    if own and len(raw) >= 8:
        # Whoever makes a list can name it: the id then fits, and the size must still fit the chunks.
        size = int.from_bytes(raw[:8], "little")
        hashes = tuple(raw[i : i + 32] for i in range(8, len(raw), 32))
        lying = ChunkList(size, hashes)
        read = read_chunk_list(lying.encode(), lying.blob)
        assert read is None or read.span(len(read.hashes) - 1)[1] == read.size_bytes or not read.hashes


def _update(kind: str) -> bytes:
    codec = CODECS[kind]()
    return encode_update([(i, codec.encode(torch.linspace(-1, 1, 5))) for i in range(2)])


UPDATES = {kind: _update(kind) for kind in sorted(CODECS)}


@many
@given(st.data(), st.sampled_from(sorted(CODECS)))
def test_updates(data: st.DataObject, kind: str) -> None:
    blob = data.draw(st.one_of(st.binary(max_size=150), mutations([UPDATES[kind]])))
    sources = open_update(blob, LAYOUT, (0, 1), CODECS[kind]())
    if sources is not None:
        for index in (0, 1):
            out = torch.full((5,), float("nan"))
            sources[index].decode(0, 5, 1.0, out)
            assert bool(torch.isfinite(out).all())


@modest
@given(st.data(), st.sampled_from(sorted(CODECS)), st.integers(0, 2))
def test_a_void_update_leaves_the_bits_of_leaving_it_out(data: st.DataObject, kind: str, at: int) -> None:
    rules: FoldRules = Strategy.model_validate(
        expand({"preset": "diloco", "codec": {"kind": kind}})
    ).fold_rules()
    good = [SealedBlob(UPDATES[kind], 3), SealedBlob(UPDATES[kind], 5)]
    blob = data.draw(mutations([UPDATES[kind]]))
    mixed = [*good[:at], SealedBlob(blob, 11), *good[at:]]
    folded = fold(STATE, (0, 1), mixed, rules)
    if folded.void:
        assert folded.void == (at,)
        assert encode_state(folded.state) == encode_state(fold(STATE, (0, 1), good, rules).state)


@many
@given(st.one_of(st.binary(max_size=150), mutations([encode_state(STATE)])))
def test_states(data: bytes) -> None:
    try:
        state = decode_state(data, LAYOUT)
    except ShoalError as error:
        assert error.code == "SH-BLOB-02"
    else:
        assert state.params.numel() == LAYOUT.numel
        assert all(slot.numel() == LAYOUT.numel for slot in state.slots.values())


def test_the_mutations_are_not_all_refused() -> None:
    """Otherwise the tests above would try nothing."""
    assert m.decode(FRAMES[0]) and parse(msgspec.msgpack.encode(CLAIM), Claim) == CLAIM
    assert read_ticket(TICKET).token == "secret"
    with pytest.raises(ShoalError):
        read_ticket(TICKET[:-1])
