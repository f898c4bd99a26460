"""Whatever a member signs: it is refused in words, or bounded in every field."""

import math
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.base.ids import BlobId, RunId
from shoal.base.layout import make_layout
from shoal.data.manifest import Manifest
from shoal.runlog.chain import NO_HEAD, BadEntry, make_link
from shoal.runlog.entries import (
    Assignment,
    Body,
    Claim,
    DataRange,
    Genesis,
    Head,
    Joined,
    MergeTaken,
    Plan,
    Receipt,
)
from shoal.runlog.statements import (
    MAX_CLAIM_BYTES,
    MAX_RANGES,
    SPARE_BYTES,
    is_hash,
    open_claim,
    open_receipts,
)
from shoal.runlog.view import RunView
from shoal.runlog.work import fair_weight
from shoal.wire.identity import Identity
from shoal.wire.signed import sign

from .modest import many

RUN, COORDINATOR, NODE = RunId("1" * 32), Identity(b"c" * 32), Identity(b"n" * 32)
HASH, NUMEL, CONTEXT = "ab" * 32, 10, 4
GENESIS = Genesis(
    coordinator=COORDINATOR.public,
    recipe="{}",
    manifest=Manifest(kind="tokens", dtype="uint8", train=(), validation=(), context=CONTEXT),
    layout=make_layout([("a", (NUMEL,))]),
    state=HASH,
    snapshot=BlobId(HASH),
    snapshot_bytes=8,
)


def _plan(round_number: int, start: int) -> Plan:
    work = Assignment(node=NODE.node, data=DataRange(start, 12), steps=4, batch=2, spare=2)
    return Plan(round=round_number, step=0, members=(work,), deadline_ms=1, fragments=(0,), reason="")


def _view() -> RunView:
    view = RunView()
    bodies: list[Body] = [GENESIS, Joined(node=NODE.node, public=NODE.public), _plan(0, 0), _plan(0, 12)]
    for body in bodies:
        head = view.head if view.genesis else NO_HEAD
        view.apply(make_link(COORDINATOR, RUN, head, 1, 1, body))
    return view


VIEW = _view()
HONEST = Claim(
    run=RUN,
    node=NODE.node,
    sequence=0,
    round=0,
    plan=3,
    head=VIEW.head,
    base=((0, 0),),
    steps=4,
    samples=8,
    tokens=32,
    data=(DataRange(12, 8),),
    local_before=HASH,
    local_after=HASH,
    blob=BlobId(HASH),
    size_bytes=100,
    loss=1.0,
)
ints = st.one_of(
    st.integers(-2, 40),
    st.sampled_from([-(2**63), 2**31, 2**62, 2**63 - 1, 2**64 - 1, 8 * NUMEL + SPARE_BYTES]),
)
texts = st.one_of(st.just(HASH), st.text(max_size=70), st.sampled_from([HASH.upper(), HASH + "\n", "../x"]))
ranges = st.lists(st.builds(DataRange, ints, ints), max_size=MAX_RANGES + 1).map(tuple)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "sequence": ints,
    "round": ints,
    "plan": ints,
    "head": st.builds(Head, ints, st.one_of(st.just(VIEW.head.hash), texts)),
    "base": st.lists(st.tuples(ints, ints), max_size=3).map(tuple),
    "merges": st.lists(st.builds(MergeTaken, ints, ints), max_size=20).map(tuple),
    "steps": ints,
    "samples": ints,
    "tokens": ints,
    "data": ranges,
    "local_before": texts,
    "local_after": texts,
    "blob": texts,
    "size_bytes": ints,
    "loss": st.floats(),
}
changes = st.lists(st.sampled_from(sorted(FIELDS)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names})
)


@many
@given(changes)
@example({})
@example({"data": (DataRange(0, 12), DataRange(12, 8)), "samples": 20})
@example({"data": (DataRange(0, 20),), "samples": 20})
@example({"data": (DataRange(2**64 - 1, 2**64 - 1),), "samples": 2**64 - 1})
def test_a_claim_is_refused_or_bounded(changed: dict[str, Any]) -> None:
    signed = sign(NODE, msgspec.structs.replace(HONEST, **changed))
    try:
        claim = open_claim(VIEW, signed)
    except BadEntry as error:
        assert str(error).startswith("has ") and changed
        return
    assert len(signed.payload) <= MAX_CLAIM_BYTES and math.isfinite(claim.loss)
    assert all(map(is_hash, (claim.blob, claim.local_before, claim.local_after)))
    assert 0 < claim.size_bytes <= 8 * NUMEL + SPARE_BYTES
    counters = [i for part in claim.data for i in range(part.start, part.start + part.count)]
    assert counters == sorted(set(counters)) and set(counters) <= set(range(24))
    assert 0 < claim.steps <= claim.samples == len(counters) and 0 <= claim.tokens <= CONTEXT * claim.samples
    weight = fair_weight(claim, VIEW.planned[NODE.node][claim.plan])
    assert 0 < weight <= min(12, claim.samples)


@many
@given(texts, ints, st.sampled_from([RUN, RunId("2" * 32)]), st.sampled_from([COORDINATOR, NODE]))
@example(HASH, 100, RUN, COORDINATOR)
def test_a_receipt_is_refused_or_is_for_just_this_update(
    blob: str, size_bytes: int, run: RunId, holder: Identity
) -> None:
    receipt = Receipt(run=run, holder=holder.node, blob=BlobId(blob), size_bytes=size_bytes)
    try:
        holders = open_receipts(VIEW, HONEST, (sign(holder, receipt),))
    except BadEntry:
        assert (blob, size_bytes, run, holder) != (HASH, 100, RUN, COORDINATOR)
    else:
        assert (blob, size_bytes, run) == (HASH, 100, RUN) and holders == (COORDINATOR.node,)
