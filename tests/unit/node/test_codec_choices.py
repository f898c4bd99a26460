"""Updates by a codec that the plan chose: sent, folded beside others', and taken back by the same."""

import msgspec
import pytest
import torch
from runlog.small_log import blob_id, small_recipe

from shoal.codec import CODECS
from shoal.codec.base import decode_whole
from shoal.node.learner import Global, Learner
from shoal.node.progress import Unsettled
from shoal.replica.fold import SealedBlob, fold
from shoal.replica.state import initial_state, state_hash
from shoal.replica.update import open_update
from shoal.runlog.entries import Assignment, DataRange
from shoal.worlds.simulated.toy import ToyTrainer, toy_layout

LAYOUT = toy_layout(300, 2)
EVERY = (0, 1)
WORK = Assignment(node="n", data=DataRange(0, 80), steps=40, batch=2)  # type: ignore[arg-type]
KINDS = ("int8", "int4", "two-bit")
STRATEGY = {
    "preset": "local-sgd",
    "schedule": {"steps": 3, "fragments": 2},
    "codec": {"kind": "int8", "error_feedback": True, "choices": [{"kind": "int4"}, {"kind": "two-bit"}]},
    "planner": {"kind": "aware"},
}


def _learner() -> Learner:
    learner = Learner(ToyTrainer(LAYOUT, 2), small_recipe(strategy=STRATEGY), 64)
    learner.adopt(Global(params=torch.zeros(300)))
    learner.train(WORK, 0, 0, 3)
    return learner


def _values(blob: bytes, kind: str) -> torch.Tensor:
    opened = open_update(blob, LAYOUT, EVERY, CODECS[kind]())
    assert opened is not None
    return torch.cat([decode_whole(opened[index], LAYOUT.fragments[index].numel) for index in EVERY])


def _residual(learner: Learner) -> torch.Tensor:
    return torch.frombuffer(
        bytearray(msgspec.msgpack.decode(learner.local_state())["residual"]), dtype=torch.float32
    )


@pytest.mark.parametrize("number", range(3))
def test_an_update_is_encoded_by_the_codec_of_that_number_and_what_it_leaves_is_kept(number: int) -> None:
    learner = _learner()
    trained = -learner.trainer.params().clone()
    blob = learner.make_update(EVERY, choice=number).blob
    assert torch.equal(trained - _values(blob, KINDS[number]), _residual(learner))


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("number", range(3))
def test_what_is_taken_back_is_read_by_the_codec_it_was_sent_with(number: int, crashed: bool) -> None:
    learner = _learner()
    made = learner.make_update(EVERY, choice=number)
    store, private = {blob_id("x"): made.blob}, learner.private_state()
    if crashed:
        learner = _learner()
        learner.load_local_state(private.data)
    learner.sent(Unsettled(4, 2, blob_id("x"), EVERY))
    before = _residual(learner)
    learner.settle({4: False}, lambda blob: store[blob])
    assert torch.equal(_residual(learner), before + _values(made.blob, KINDS[number]))


def test_a_private_state_of_an_earlier_version_is_read() -> None:
    learner = _learner()
    old = msgspec.msgpack.decode(learner.local_state())
    del old["codec"]
    learner.load_local_state(msgspec.msgpack.encode(old))
    assert msgspec.msgpack.decode(learner.local_state())["codec"] == 0


def test_updates_of_different_codecs_are_folded_together() -> None:
    rules = small_recipe(strategy=STRATEGY).strategy.fold_rules()
    blobs = [_learner().make_update(EVERY, choice=number).blob for number in range(3)]
    state = initial_state(LAYOUT, torch.zeros(300), rules.slots)
    updates = [SealedBlob(blob, 1, codec=number) for number, blob in enumerate(blobs)]
    folded = fold(state, EVERY, updates, rules)
    mean = sum((_values(blob, kind) for blob, kind in zip(blobs, KINDS, strict=True)), torch.zeros(300)) / 3
    assert not folded.void
    torch.testing.assert_close(folded.state.params, -mean)
    assert fold(state, EVERY, [SealedBlob(blobs[1], 1)], rules).void == (0,), "by another codec it is none"


def test_a_number_that_the_recipe_does_not_have_means_the_last_codec() -> None:
    rules = small_recipe(strategy=STRATEGY).strategy.fold_rules()
    state = initial_state(LAYOUT, torch.zeros(300), rules.slots)
    blob = _learner().make_update(EVERY, choice=7).blob
    found = [fold(state, EVERY, [SealedBlob(blob, 1, codec=number)], rules).state for number in (2, 7)]
    assert state_hash(found[0]) == state_hash(found[1]) != state_hash(state)
