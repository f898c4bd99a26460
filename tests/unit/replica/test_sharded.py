"""Folding through digests: a folder's arithmetic, and everybody's step from it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.aggregate import AGGREGATORS, OUTER_OPTIMIZERS
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.base.layout import make_layout
from shoal.codec import CODECS
from shoal.codec.dense import DENSE
from shoal.replica.blobs import chunk_list
from shoal.replica.fold import FoldRules, SealedBlob, fold, seed_of
from shoal.replica.parts import join_parts
from shoal.replica.sharded import Inputs, Made, fold_shards, fold_stored, make_digest
from shoal.replica.state import State, initial_state, state_hash
from shoal.replica.update import encode_update
from shoal.runlog.entries import Claim, DataRange, Digest, Head
from shoal.runlog.sharding import Shard, cut
from shoal.runlog.view import Step, Update

LAYOUT = make_layout([("a", (500,)), ("b", (33,)), ("c", (40_000,))], 2)
RANDOM = torch.Generator().manual_seed(9)
NAMES = tuple(NodeId(f"{i:064x}") for i in range(3))


def _rules(
    digest: str = "int8", codec: str = "none", aggregate: str = "mean", outer: str = "sgd"
) -> FoldRules:
    rule, optimiser = AGGREGATORS[aggregate](), OUTER_OPTIMIZERS[outer](lr=1.0)
    return FoldRules(CODECS[codec](), rule, optimiser, sharded=DENSE[digest]())


def _begun(rules: FoldRules) -> State:
    return initial_state(LAYOUT, torch.randn(LAYOUT.numel, generator=RANDOM), rules.slots)


def _update(blob: bytes, weight: int, number: int) -> Update:
    claim = Claim(
        run=RunId("r"),
        node=NAMES[number],
        sequence=0,
        round=0,
        plan=1,
        head=Head(0, ""),
        base=((0, 0), (1, 0)),
        steps=1,
        samples=1,
        tokens=1,
        data=(DataRange(0, 1),),
        local_before="",
        local_after="",
        blob=chunk_list(blob).blob,
        size_bytes=len(blob),
        loss=0.0,
    )
    return Update(claim, weight, ())


SHARDS = tuple(Shard(*span, folders=NAMES) for span in cut(LAYOUT, (0, 1), 7))


def _step(blobs: list[bytes], place: int = 0) -> Step:
    updates = tuple(_update(blob, 1 + n, n) for n, blob in enumerate(blobs))
    return Step(5, 0, (0, 1), updates, place=place, shards=SHARDS)


def _parts(values: torch.Tensor, codec: str = "none") -> list[bytes]:
    return [CODECS[codec]().encode(values[shard.start : shard.stop]) for shard in SHARDS]


def _values(count: int = 3) -> list[torch.Tensor]:
    return [torch.randn(LAYOUT.numel, generator=RANDOM) for _ in range(count)]


def _by_shard(rows: list[list[bytes]], number: int) -> list[bytes | None]:
    return [row[number] for row in rows]


def _made(state: State, step: Step, rows: list[list[bytes]], rules: FoldRules) -> list[Made]:
    found = [make_digest(state, step, s, _by_shard(rows, n), rules, None) for n, s in enumerate(SHARDS)]
    return [made for made in found if made is not None]


@pytest.mark.parametrize("codec", ["none", "two-bit", "chunked-top-k"])
@pytest.mark.parametrize("outer", ["sgd", "nesterov", "adam"])
def test_digests_that_lose_nothing_are_the_plain_fold(codec: str, outer: str) -> None:
    """Shard by shard or fragment by fragment, with and without folders: the same bits, where no codec sees the cut."""
    rules = _rules("none", codec, outer=outer)
    state, values = _begun(rules), _values()
    rows = [_parts(one, codec) for one in values]
    step = _step([join_parts(row) for row in rows])
    digests = {n: made.payload for n, made in enumerate(_made(state, step, rows, rules))}
    through = fold_shards(state, step, Inputs(digests, {}), rules)
    by_all = fold_shards(state, step, Inputs({}, {n: _by_shard(rows, n) for n in range(len(SHARDS))}), rules)
    assert state_hash(through) == state_hash(by_all) != state_hash(state)
    if codec == "none":
        whole = [
            SealedBlob(
                encode_update(
                    [(i, CODECS[codec]().encode(v[f.start : f.stop])) for i, f in enumerate(LAYOUT.fragments)]
                ),
                1 + n,
            )
            for n, v in enumerate(values)
        ]
        assert state_hash(fold(state, (0, 1), whole, rules).state) == state_hash(through)


@pytest.mark.parametrize("digest", sorted(DENSE))
def test_what_a_digest_leaves_out_is_in_its_residual(digest: str) -> None:
    """Over some rounds nothing is lost: what was applied and what is kept are all that came."""
    rules = _rules(digest)
    state, residuals = _begun(rules), [None] * len(SHARDS)
    first, total = state.params.clone(), torch.zeros(LAYOUT.numel, dtype=torch.float64)
    for place in range(4):
        values = _values(2)
        total += (values[0].double() + 2 * values[1].double()) / 3
        rows = [_parts(one) for one in values]
        step = _step([join_parts(row) for row in rows], place)
        made = [
            make_digest(state, step, s, _by_shard(rows, n), rules, residuals[n]) for n, s in enumerate(SHARDS)
        ]
        residuals = [one.residual if one else None for one in made]
        state = fold_shards(
            state, step, Inputs({n: one.payload for n, one in enumerate(made) if one}, {}), rules
        )
    kept = torch.cat([one for one in residuals if one is not None]).double()
    assert torch.allclose(kept - (state.params - first).double(), total, atol=1e-4)
    assert digest == "none" or bool(kept.ne(0).any()), "it does lose something"


def test_a_shard_is_folded_by_all_or_by_few_independently() -> None:
    rules = _rules("two-bit")
    state, rows = _begun(rules), [_parts(one) for one in _values()]
    step = _step([join_parts(row) for row in rows])
    made = _made(state, step, rows, rules)
    digests = {n: one.payload for n, one in enumerate(made)}
    several = fold_shards(
        state,
        step,
        Inputs({n: digests[n] for n in digests if n != 2}, {2: _by_shard(rows, 2)}),
        rules,
    )
    through = fold_shards(state, step, Inputs(digests, {}), rules)
    here = slice(SHARDS[2].start, SHARDS[2].stop)
    assert not torch.equal(several.params[here], through.params[here])
    several.params[here] = through.params[here]
    assert torch.equal(several.params, through.params)


def test_void_parts_count_for_nothing_in_their_shard_only() -> None:
    rules = _rules("none")
    state, values = _begun(rules), _values(2)
    good, bad = _parts(values[0]), _parts(values[1])
    bad[1] = bad[1][:-1]
    bad[3] = b"\xff" * len(bad[3])
    step = _step([join_parts(good), join_parts(bad)])
    rows = [good, bad]
    after = fold_shards(state, step, Inputs({}, {n: _by_shard(rows, n) for n in range(len(SHARDS))}), rules)
    for number, shard in enumerate(SHARDS):
        here = slice(shard.start, shard.stop)
        both = (values[0][here] * (1 / 3)) + (values[1][here] * (2 / 3))
        wanted = values[0][here] if number in (1, 3) else both
        assert torch.allclose(state.params[here] - after.params[here], wanted, atol=1e-5)
    missing = fold_shards(state, step, Inputs({}, {n: [good[n], None] for n in range(len(SHARDS))}), rules)
    assert torch.allclose(state.params - missing.params, values[0], atol=1e-5)


def test_no_digest_is_made_of_nothing_or_of_what_its_codec_cannot_hold() -> None:
    rules, huge = _rules("fp16"), torch.full((LAYOUT.numel,), 1e9)
    state, row = _begun(rules), _parts(huge)
    step = _step([join_parts(row)])
    assert make_digest(state, step, SHARDS[0], [row[0]], rules, None) is None
    assert make_digest(state, step, SHARDS[0], [None], rules, None) is None
    assert make_digest(state, step, SHARDS[0], [b"noise"], rules, None) is None
    plain = fold_shards(state, step, Inputs({}, {n: [row[n]] for n in range(len(SHARDS))}), rules)
    assert torch.equal(plain.params, state.params - huge), "everybody folds it, and loses nothing"


@settings(deadline=None, max_examples=60)
@given(noise=st.binary(max_size=3000), number=st.integers(0, len(SHARDS) - 1))
def test_a_digest_that_is_none_moves_nothing(noise: bytes, number: int) -> None:
    """Its folders may all have lied: whatever it is, everybody gets to the same state."""
    rules = _rules("two-bit", outer="adam")
    state = _begun(rules)
    step = _step([b"x"])
    digests = dict.fromkeys(range(len(SHARDS)), noise)
    one, two = (fold_shards(state, step, Inputs(digests, {}), rules) for _ in range(2))
    assert state_hash(one) == state_hash(two) and bool(torch.isfinite(one.params).all())
    if DENSE["two-bit"]().open(memoryview(noise), SHARDS[number].numel) is None:
        here = slice(SHARDS[number].start, SHARDS[number].stop)
        assert torch.equal(one.params[here], state.params[here])


def test_steps_are_counted_by_fragments_that_move() -> None:
    rules = _rules("int8", outer="adam")
    state, row = _begun(rules), _parts(_values(1)[0])
    step = _step([join_parts(row)])
    only = {n: [row[n] if shard.fragment == 1 else None] for n, shard in enumerate(SHARDS)}
    after = fold_shards(state, step, Inputs({}, only), rules)
    assert after.steps == (0, 1)
    assert fold_shards(state, step, Inputs({}, {n: [None] for n in only}), rules) is state


def test_whole_blobs_of_a_store_fold_to_the_same() -> None:
    """As `shoal log replay` does it: digests where there are some, else the parts of every update."""
    rules = _rules("two-bit", "int8")
    state, rows = _begun(rules), [_parts(one, "int8") for one in _values()]
    blobs = [join_parts(row) for row in rows] + [
        made.payload for made in _made(state, _step([b""] * 3), rows, rules)
    ]
    store = {chunk_list(blob).blob: blob for blob in blobs}
    digests = [
        Digest(
            fragment=s.fragment, start=s.start, stop=s.stop, blob=chunk_list(blobs[3 + n]).blob, folders=NAMES
        )
        for n, s in enumerate(SHARDS)
    ]
    mixed = (None, *digests[1:])
    step = replace(_step(blobs[:3]), digests=mixed)
    inputs = Inputs({n: blobs[3 + n] for n in range(1, len(SHARDS))}, {0: _by_shard(rows, 0)})
    assert state_hash(fold_stored(state, step, store.__getitem__, rules)) == state_hash(
        fold_shards(state, step, inputs, rules)
    )
    read: list[BlobId] = []

    def reading(blob: BlobId) -> bytes:
        read.append(blob)
        return store[blob]

    fold_stored(state, replace(step, digests=tuple(digests)), reading, rules)
    assert set(read) == {item.blob for item in digests}, "updates are not needed where all is digested"


def test_a_part_longer_than_it_may_be_is_void_for_everybody() -> None:
    """A folder does not fetch it, so a replay must not read it either."""
    rules = _rules("none")
    state, row = _begun(rules), _parts(_values(1)[0])
    row[0] += b"\0" * (SHARDS[0].most_bytes + 1)
    blob = join_parts(row)
    step = replace(_step([blob]), digests=(None,) * len(SHARDS))
    after = fold_stored(state, step, lambda _: blob, rules)
    here = slice(SHARDS[0].start, SHARDS[0].stop)
    assert torch.equal(after.params[here], state.params[here]) and state_hash(after) != state_hash(state)


def test_rules_that_draw_draw_alike() -> None:
    claims = [update.claim for update in _step([b"a", b"b", b"c"]).updates]
    other = msgspec.structs.replace(claims[0], blob=chunk_list(b"d").blob)
    step = _step([b"a", b"b", b"c"])
    bent = replace(step, updates=(replace(step.updates[0], claim=other), *step.updates[1:]))
    assert seed_of(step) == seed_of(_step([b"a", b"b", b"c"])) != seed_of(bent)
