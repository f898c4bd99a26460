"""Updates that are cut for digests: the same values as ever, in parts, and taken back alike."""

from __future__ import annotations

import msgspec
import pytest
import torch
from runlog.small_log import small_recipe

from shoal.base.ids import BlobId
from shoal.codec import CODECS
from shoal.codec.base import decode_whole
from shoal.node.learner import Global, Learner
from shoal.node.progress import Unsettled
from shoal.replica.blobs import chunk_list
from shoal.replica.update import open_cut, open_update
from shoal.runlog.entries import Assignment, DataRange
from shoal.runlog.sharding import cut
from shoal.worlds.simulated.toy import ToyTrainer, toy_layout

LAYOUT = toy_layout(300, 2)
FRAGMENTS = (0, 1)


def _learner(codec: str = "none", feedback: bool = False) -> Learner:
    strategy = {"preset": "local-sgd", "codec": {"kind": codec, "error_feedback": feedback}}
    learner = Learner(ToyTrainer(LAYOUT, 2), small_recipe(strategy=strategy), 64)
    learner.adopt(Global(params=torch.linspace(-1, 1, LAYOUT.numel)))
    learner.train(
        Assignment(node="n", data=DataRange(0, 6), steps=3, batch=2),  # type: ignore[arg-type]
        0,
        0,
        3,
    )
    return learner


def _values(blob: bytes, codec: str, shards: int) -> torch.Tensor:
    out = torch.full((LAYOUT.numel,), torch.nan)
    for (_, start, stop), source in open_cut(blob, LAYOUT, FRAGMENTS, CODECS[codec](), shards):
        out[start:stop] = decode_whole(source, stop - start)
    return out


@pytest.mark.parametrize("shards", [1, 5, 64, 1000])
def test_a_cut_update_has_the_same_values(shards: int) -> None:
    plain, parted = (_learner().make_update(FRAGMENTS, shards=count).blob for count in (0, shards))
    opened = open_update(plain, LAYOUT, FRAGMENTS, CODECS["none"]())
    assert opened is not None and open_update(parted, LAYOUT, FRAGMENTS, CODECS["none"]()) is None
    whole = torch.cat([decode_whole(opened[i], LAYOUT.fragments[i].numel) for i in FRAGMENTS])
    assert torch.equal(_values(parted, "none", shards), whole)
    assert open_cut(plain, LAYOUT, FRAGMENTS, CODECS["none"](), shards) == []


def test_each_part_is_coded_by_itself_with_its_own_error() -> None:
    learner, exact = _learner("two-bit", feedback=True), _learner()
    blob = learner.make_update(FRAGMENTS, shards=7).blob
    wanted = _values(exact.make_update(FRAGMENTS, shards=7).blob, "none", 7)
    residual = msgspec.msgpack.decode(learner.local_state())["residual"]
    kept = torch.frombuffer(bytearray(residual), dtype=torch.float32)
    assert bool(kept.ne(0).any())
    assert torch.allclose(_values(blob, "two-bit", 7) + kept, wanted, atol=1e-6)


def test_what_came_to_nothing_is_taken_back_whole() -> None:
    learner, exact = _learner("two-bit", feedback=True), _learner()
    blob = learner.make_update(FRAGMENTS, shards=7).blob
    store = {chunk_list(blob).blob: blob}
    learner.sent(Unsettled(0, 1, chunk_list(blob).blob, FRAGMENTS))
    again = _learner("two-bit", feedback=True)
    again.load_local_state(learner.local_state())
    assert [one.shards for one in again.unsettled] == [7], "it outlives a restart"
    wanted = _values(exact.make_update(FRAGMENTS, shards=7).blob, "none", 7)
    for mine in (learner, again):
        mine.settle({0: False}, lambda name: store[BlobId(name)])
        residual = msgspec.msgpack.decode(mine.local_state())["residual"]
        assert torch.allclose(torch.frombuffer(bytearray(residual), dtype=torch.float32), wanted, atol=1e-6)


def test_codecs_draw_for_each_part_anew() -> None:
    blob = _learner("random-k").make_update(FRAGMENTS, shards=6).blob
    sent = []
    for (_, start, stop), source in open_cut(blob, LAYOUT, FRAGMENTS, CODECS["random-k"](), 6):
        out = torch.zeros(stop - start)
        source.sent(0, stop - start, out)
        sent.append(tuple(out.nonzero().flatten().tolist()))
    assert len(cut(LAYOUT, FRAGMENTS, 6)) == len(sent) and len(set(sent)) > 1
