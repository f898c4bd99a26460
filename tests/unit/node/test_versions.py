"""A learner among global versions: fragments in turn, versions in the middle of work, and updates that come back."""

from typing import Any

import pytest
import torch
from runlog.small_log import blob_id, small_recipe

from shoal.base.errors import ShoalError
from shoal.codec import CODECS
from shoal.node.learner import MAX_UNSETTLED, Global, Learner
from shoal.node.progress import Unsettled
from shoal.replica.update import open_update
from shoal.runlog.entries import Assignment, DataRange
from shoal.runlog.statements import MAX_MERGES
from shoal.worlds.simulated.toy import ToyTrainer, toy_layout

from .test_learner import Ruler

LAYOUT = toy_layout(12, 3)
EVERY = (0, 1, 2)


def _learner(merge: str = "mix", codec: str = "none", *, trainer: Any = None, **more: Any) -> Learner:
    rules = {"mix": {"kind": "mix", "alpha": 1.0}, "elastic": {"kind": "elastic", "alpha": 0.5}}
    strategy = {
        "preset": "local-sgd",
        "schedule": {"steps": 3, "fragments": 3},
        "codec": {"kind": codec, **more},
        "merge": rules.get(merge, {"kind": merge}),
    }
    return Learner(trainer or Ruler(LAYOUT), small_recipe(strategy=strategy), 64)


def _work(start: int = 0, steps: int = 40) -> Assignment:
    return Assignment(node="n", data=DataRange(start, 2 * steps), steps=steps, batch=2)  # type: ignore[arg-type]


def _state(value: float, position: int = 0, fragments: tuple[int, ...] | None = None) -> Global:
    return Global(params=torch.full((12,), value), position=position, fragments=fragments)


def _values(blob: bytes, fragments: tuple[int, ...] = EVERY, codec: str = "none") -> torch.Tensor:
    sources = open_update(blob, LAYOUT, fragments, CODECS[codec]())
    assert sources is not None
    out = torch.zeros(LAYOUT.numel)
    for index in fragments:
        part = LAYOUT.fragments[index]
        sources[index].decode(0, part.numel, 1.0, out[part.start : part.stop])
    return out


# --- fragments in turn -------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", ["replace", "mix", "add-delta"])
def test_progress_in_other_fragments_survives_a_claim_and_a_merge(merge: str) -> None:
    learner = _learner(merge)
    learner.adopt(_state(0))
    learner.train(_work(0), 0, 0, 2)
    first = learner.make_update((1,))
    assert _values(first.blob, (1,)).tolist() == [0.0] * 4 + [-2.0] * 4 + [0.0] * 4
    mixed = torch.zeros(12)
    mixed[4:8] = 5.0
    learner.adopt(Global(params=mixed, position=9, fragments=(1,)))
    assert learner.trainer.params().tolist() == [2.0] * 4 + [5.0] * 4 + [2.0] * 4
    learner.train(_work(50), 0, 0, 1)
    second = learner.make_update((2,))
    assert _values(second.blob, (2,))[8:].tolist() == [-3.0] * 4, "all that was trained since its last turn"
    assert (first.progress.samples, second.progress.samples) == (4, 2), "and each sample is named once"
    third = learner.make_update((1,))
    assert _values(third.blob, (1,))[4:8].tolist() == [-1.0] * 4, "what was trained since the merge"


def test_a_round_that_was_missed_is_not_forgotten_where_fragments_keep_its_progress() -> None:
    learner = _learner("replace")
    learner.adopt(_state(0))
    learner.train(_work(0), 0, 0, 2)
    learner.adopt(_state(7, 3, (0,)))
    assert learner.progress.steps == 2, "two of three fragments still have it"
    learner.adopt(_state(7, 4))
    assert learner.progress.steps == 0


# --- versions in the middle of work ------------------------------------------------------------------------


def test_replace_takes_new_versions_only_between_assignments() -> None:
    learner = _learner("replace")
    learner.adopt(_state(0))
    learner.begin(3)
    learner.train(_work(), 0, 0, 2)
    learner.adopt(_state(5, 4, (0,)), working=True)
    learner.adopt(_state(6, 5, (1,)), working=True)
    assert learner.trainer.params().tolist() == [2.0] * 12
    learner.train(_work(), 0, 2, 1)
    made = learner.make_update(EVERY)
    assert _values(made.blob).tolist() == [-3.0] * 12 and made.progress.merges == []
    learner.begin(3)
    assert learner.trainer.params().tolist() == [6.0] * 8 + [3.0] * 4, (
        "the fragments that changed, newest version"
    )


@pytest.mark.parametrize("merge", ["mix", "add-delta"])
def test_merges_in_the_middle_of_work_are_recorded_and_not_counted(merge: str) -> None:
    learner = _learner(merge)
    learner.adopt(_state(0))
    learner.begin(3)
    learner.adopt(_state(1, 2), working=True)
    learner.train(_work(), 0, 0, 2)
    learner.adopt(_state(5, 4), working=True)
    assert learner.trainer.params().tolist() == [7.0] * 12, "two steps on the new version"
    learner.train(_work(), 0, 2, 1)
    made = learner.make_update(EVERY)
    assert _values(made.blob).tolist() == [-3.0] * 12
    assert [(taken.position, taken.step) for taken in made.progress.merges] == [(4, 2)], (
        "none before any step"
    )


def test_a_claim_has_room_for_so_many_merges_and_they_are_spread_over_its_work() -> None:
    learner = _learner("mix")
    learner.adopt(_state(0))
    learner.begin(60)
    for step in range(60):
        learner.train(_work(0, 60), 0, step, 1)
        learner.adopt(_state(float(step), 10 + step), working=True)
    merges = learner.make_update(EVERY).progress.merges
    assert 10 <= len(merges) <= MAX_MERGES and merges[-1].step > 50
    learner.begin(60)
    assert learner.trainer.params().tolist() == [59.0] * 12, "the last one waits for the next work"


def test_what_is_on_its_way_stays_in_the_local_model_with_add_delta() -> None:
    learner = _learner("add-delta")
    learner.adopt(_state(10))
    learner.train(_work(), 0, 0, 3)
    learner.make_update(EVERY)
    learner.sent(Unsettled(4, 2, blob_id("x"), EVERY))
    learner.train(_work(), 0, 3, 1)
    learner.adopt(_state(12, 5), settled=3)
    assert learner.trainer.params().tolist() == [16.0] * 12
    learner.adopt(_state(13, 6), settled=4)
    assert learner.trainer.params().tolist() == [14.0] * 12
    made = learner.make_update(EVERY)
    assert _values(made.blob).tolist() == [-1.0] * 12, "the one step since"


def test_elastic_pulls_local_model_and_centre_towards_each_other() -> None:
    learner = _learner("elastic")
    learner.adopt(_state(0))
    learner.train(_work(), 0, 0, 4)
    made = learner.make_update(EVERY)
    assert _values(made.blob).tolist() == [-2.0] * 12 and learner.trainer.params().tolist() == [2.0] * 12
    learner.adopt(_state(1, 3))
    assert learner.trainer.params().tolist() == [2.0] * 12, "the local model goes on from where it is"
    learner.train(_work(50), 0, 0, 2)
    again = learner.make_update(EVERY)
    assert _values(again.blob).tolist() == [-1.5] * 12 and learner.trainer.params().tolist() == [2.5] * 12


# --- updates that come back --------------------------------------------------------------------------------


def _residual(learner: Learner) -> torch.Tensor:
    assert learner._residual is not None
    return learner._residual.clone()


def _sent(learner: Learner, store: dict[Any, bytes], sequence: int, start: int) -> torch.Tensor:
    """Train and claim; what the update was before it was encoded."""
    before = _residual(learner) if learner._residual is not None else torch.zeros(12)
    learner.train(_work(start), 0, 0, 3)
    made = learner.make_update(EVERY)
    blob = blob_id("update", sequence)
    store[blob] = made.blob
    learner.sent(Unsettled(sequence, 5, blob, EVERY))
    return _values(made.blob, codec="int8") + _residual(learner) - before


def _feedback() -> Learner:
    learner = _learner("replace", "int8", trainer=ToyTrainer(LAYOUT, 2), error_feedback=True)
    learner.adopt(_state(0))
    return learner


def test_an_update_that_came_to_nothing_is_sent_again() -> None:
    learner, store = _feedback(), {}
    update = _sent(learner, store, 0, 0)
    learner.settle({0: None}, store.__getitem__)
    assert len(learner.unsettled) == 1 and float(_residual(learner).abs().max()) < 0.1
    learner.settle({0: False}, store.__getitem__)
    assert torch.allclose(_residual(learner), update, atol=1e-6) and learner.unsettled == ()
    learner.settle({0: False}, store.__getitem__)
    assert torch.allclose(_residual(learner), update, atol=1e-6), "once"


def test_an_update_that_was_accepted_is_not() -> None:
    learner, store = _feedback(), {}
    _sent(learner, store, 0, 0)
    before = _residual(learner)
    learner.settle({0: True}, store.__getitem__)
    assert torch.equal(_residual(learner), before) and learner.unsettled == ()


def test_a_crash_neither_loses_nor_doubles_it() -> None:
    """The private state of claim 1 either has claim 0 in its residual, or on its list, whenever the crash comes."""
    learner, store = _feedback(), {}
    _sent(learner, store, 0, 0)
    saved = learner.local_state()
    learner.settle({0: False}, store.__getitem__)
    taken = _residual(learner)
    for state in (saved, learner.local_state()):
        again = _feedback()
        again.load_local_state(state)
        again.settle({0: False}, store.__getitem__)
        assert torch.equal(_residual(again), taken)


def test_a_blob_that_the_disk_has_lost_is_given_up() -> None:
    for error in (FileNotFoundError(), ShoalError("SH-BLOB-02", "rotten", "fetch it")):
        learner, store = _feedback(), {}
        _sent(learner, store, 0, 0)
        before = _residual(learner)

        def read(blob: Any, error: Exception = error) -> bytes:
            raise error

        learner.settle({0: False}, read)
        assert torch.equal(_residual(learner), before) and learner.unsettled == ()


def test_the_list_of_what_is_waited_for_is_bounded() -> None:
    learner, store = _feedback(), {}
    for sequence in range(MAX_UNSETTLED + 3):
        _sent(learner, store, sequence, 50 * sequence)
    assert [sent.sequence for sent in learner.unsettled] == list(range(3, MAX_UNSETTLED + 3))


def test_without_error_feedback_nothing_is_waited_for() -> None:
    learner, store = _learner("replace", "int8", trainer=ToyTrainer(LAYOUT, 2)), {}
    learner.adopt(_state(0))
    learner.train(_work(), 0, 0, 3)
    store[blob_id("x")] = learner.make_update(EVERY).blob
    learner.sent(Unsettled(0, 5, blob_id("x"), EVERY))
    learner.settle({0: False}, store.__getitem__)
    assert learner.unsettled == () and learner._residual is None


def test_codecs_that_draw_draw_alike_in_a_round_and_anew_in_the_next() -> None:
    def update(round_number: int, seed_of: str = "random-k") -> bytes:
        learner = _learner("replace", seed_of, trainer=ToyTrainer(LAYOUT, 2), density=0.25)
        learner.adopt(_state(0))
        learner.train(_work(), 0, 0, 3)
        return learner.make_update(EVERY, round_number).blob

    assert update(3) == update(3) and len({update(number) for number in range(8)}) > 1
