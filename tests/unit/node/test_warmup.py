"""What a learner sends while a codec warms up, what it takes back, and what an outer optimiser makes of an update."""

from typing import Any

import msgspec
import pytest
import torch
from runlog.small_log import blob_id, small_recipe

from shoal.codec import CODECS
from shoal.node.learner import Global, Learner
from shoal.node.progress import Unsettled
from shoal.replica.state import State
from shoal.replica.update import open_update
from shoal.runlog.entries import Assignment, DataRange
from shoal.worlds.simulated.toy import ToyTrainer, toy_layout

LAYOUT = toy_layout(300, 2)
EVERY = (0, 1)
WORK = Assignment(node="n", data=DataRange(0, 80), steps=40, batch=2)  # type: ignore[arg-type]


def _learner(strategy: dict[str, Any]) -> Learner:
    learner = Learner(ToyTrainer(LAYOUT, 2), small_recipe(strategy=strategy), 64)
    learner.adopt(Global(params=torch.zeros(300)))
    return learner


def _int8(warmup_rounds: int = 3) -> Learner:
    codec = {"kind": "int8", "error_feedback": True, "warmup_rounds": warmup_rounds}
    return _learner({"preset": "local-sgd", "schedule": {"steps": 3, "fragments": 2}, "codec": codec})


def _values(blob: bytes, codec: str) -> torch.Tensor:
    sources = open_update(blob, LAYOUT, EVERY, CODECS[codec]())
    assert sources is not None
    out = torch.empty(300)
    for index, part in enumerate(LAYOUT.fragments):
        sources[index].decode(0, part.numel, 1.0, out[part.start : part.stop])
    return out


def _residual(learner: Learner) -> torch.Tensor:
    local = msgspec.msgpack.decode(learner.local_state())
    return torch.frombuffer(bytearray(local["residual"]), dtype=torch.float32)


@pytest.mark.parametrize(("place", "codec"), [(0, "none"), (2, "none"), (3, "int8"), (7, "int8")])
def test_first_rounds_are_sent_as_they_are(place: int, codec: str) -> None:
    learner = _int8()
    learner.train(WORK, 0, 0, 3)
    trained = -learner.trainer.params().clone()
    blob = learner.make_update(EVERY, 9, place).blob
    assert torch.equal(_values(blob, codec), trained) == (codec == "none")
    assert bool(_residual(learner).any()) == (codec == "int8")
    other = "int8" if codec == "none" else "none"
    assert open_update(blob, LAYOUT, EVERY, CODECS[other]()) is None


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize(("place", "codec"), [(2, "none"), (3, "int8")])
def test_what_is_taken_back_is_read_by_the_codec_it_was_sent_with(
    place: int, codec: str, crashed: bool
) -> None:
    """Whether this process has made it, or one before it that has left nothing but its private state."""
    learner = _int8()
    learner.train(WORK, 0, 0, 3)
    made = learner.make_update(EVERY, 0, place)
    store, private = {blob_id("x"): made.blob}, learner.private_state()
    claim = Unsettled(4, 2, blob_id("x"), EVERY)
    if crashed:
        learner = _int8()
        learner.load_local_state(private.data)
    learner.sent(claim)
    before = _residual(learner)
    learner.settle({4: False}, lambda blob: store[blob])
    assert torch.equal(_residual(learner), before + _values(made.blob, codec))
    learner.settle({4: False}, lambda blob: store[blob])
    assert torch.equal(_residual(learner), before + _values(made.blob, codec)), "once"


def _state(taken: int) -> State:
    slots = {"momentum": torch.full((300,), 2.0), "variance": torch.ones(300)}
    return State(LAYOUT, torch.zeros(300), slots, (taken, taken))


def _one_bit_adam() -> Learner:
    strategy = {
        "preset": "onebit-adam",
        "schedule": {"fragments": 2},
        "outer": {"freeze_after": 5},
        "codec": {"kind": "none", "error_feedback": True},
    }
    return _learner(strategy)


@pytest.mark.parametrize("taken", [4, 5])
def test_one_bit_adam_is_sent_gradients_and_then_momenta(taken: int) -> None:
    learner = _one_bit_adam()
    learner.train(WORK, 0, 0, 1)
    gradient = -learner.trainer.params().clone()
    sent = _values(learner.make_update(EVERY, taken, taken, _state(taken)).blob, "none")
    assert torch.allclose(sent, gradient if taken < 5 else 0.9 * 2.0 + 0.1 * gradient, atol=1e-6)


def test_a_momentum_that_came_to_nothing_is_not_sent_again() -> None:
    """It is no sum of steps: added to the next one, it would count twice."""
    learner = _one_bit_adam()
    learner.train(WORK, 0, 0, 1)
    made = learner.make_update(EVERY, 5, 5, _state(5))
    learner.sent(Unsettled(4, 2, blob_id("x"), EVERY))
    assert learner.unsettled == ()
    learner.settle({4: False}, lambda blob: made.blob)
    assert not bool(_residual(learner).any())
