import msgspec
import numpy as np
import pytest
import torch
from runlog.small_log import small_recipe

from shoal.base.errors import ShoalError
from shoal.base.layout import Layout, make_layout
from shoal.codec import CODECS
from shoal.node.learner import MAX_CARRIED, Global, Learner, private_id
from shoal.replica.update import open_update
from shoal.runlog.entries import Assignment, DataRange
from shoal.runlog.statements import MAX_RANGES
from shoal.training.trainer import StepResult
from shoal.worlds.simulated.toy import ToyTrainer, toy_layout

LAYOUT = toy_layout(12, 2)
ITEMS = 64


class Ruler:
    """A trainer whose every step adds one, so that progress can be counted."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.batch_size = layout, 2
        self.values = torch.zeros(layout.numel)
        self.seen: list[list[int]] = []
        self.steps: list[int] = []

    def params(self) -> torch.Tensor:
        return self.values

    def load(self, params: torch.Tensor) -> None:
        self.values.copy_(params)

    def step(self, indices: np.ndarray, step_number: int) -> StepResult:  # type: ignore[type-arg]
        self.values += 1
        self.seen.append(indices.tolist())
        self.steps.append(step_number)
        return StepResult(loss=float(step_number), samples=len(indices), tokens=10 * len(indices))

    def local_state(self) -> bytes:
        return b"ruler"

    def load_local_state(self, data: bytes) -> None:
        assert data == b"ruler"

    def evaluate(self, max_batches: int) -> float:
        return float(self.values.mean())


def _recipe(merge: str = "replace", codec: str = "none", feedback: bool = False):  # type: ignore[no-untyped-def]
    overlap = merge == "mix"
    return small_recipe(
        strategy={
            "preset": "local-sgd",
            "schedule": {"steps": 3, "overlap": overlap},
            "codec": {"kind": codec, "error_feedback": feedback},
            "merge": {"kind": merge} if merge == "replace" else {"kind": merge, "alpha": 0.5},
        }
    )


def _learner(trainer=None, **recipe) -> Learner:  # type: ignore[no-untyped-def]
    return Learner(trainer or Ruler(LAYOUT), _recipe(**recipe), ITEMS)


def _work(start: int = 0, steps: int = 3, spare: int = 0) -> Assignment:
    return Assignment(
        node="n",  # type: ignore[arg-type]
        data=DataRange(start, 2 * (steps + spare)),
        steps=steps,
        batch=2,
        spare=spare,
    )


def _values(blob: bytes, codec: str = "none") -> torch.Tensor:
    sources = open_update(blob, LAYOUT, (0, 1), CODECS[codec]())
    assert sources is not None
    out = torch.empty(LAYOUT.numel)
    for index, part in enumerate(LAYOUT.fragments):
        sources[index].decode(0, part.numel, 1.0, out[part.start : part.stop])
    return out


def test_an_update_is_anchor_minus_local_and_names_its_samples() -> None:
    learner = _learner()
    learner.adopt(Global(params=torch.full((12,), 5.0)))
    learner.train(_work(start=20), first_step=30, done=0, steps=3)
    made = learner.make_update((0, 1))
    assert _values(made.blob).tolist() == [-3.0] * 12
    progress = made.progress
    assert (progress.steps, progress.samples, progress.tokens) == (3, 6, 60)
    assert progress.data == [DataRange(20, 6)] and progress.loss_sum == 30 + 31 + 32
    assert learner.trainer.steps == [30, 31, 32]  # type: ignore[attr-defined]
    seen = learner.trainer.seen  # type: ignore[attr-defined]
    assert len({index for batch in seen for index in batch}) == 6, "no sample twice"
    assert learner.progress.steps == 0


def test_training_in_pieces_is_training_at_once() -> None:
    blobs = []
    for pieces in ([3], [1, 2], [1, 1, 1]):
        learner = _learner(ToyTrainer(LAYOUT, 2))
        learner.adopt(Global(params=torch.zeros(12)))
        done = 0
        for count in pieces:
            learner.train(_work(start=8), 0, done, count)
            done += count
        made = learner.make_update((0, 1))
        blobs.append((made.blob, made.progress.data, learner.private_state().after))
    assert blobs[0] == blobs[1] == blobs[2]


def test_replace_throws_progress_away() -> None:
    learner = _learner()
    learner.adopt(Global(params=torch.zeros(12)))
    learner.train(_work(), 0, 0, 2)
    learner.adopt(Global(params=torch.full((12,), 7.0)))
    assert learner.progress.steps == 0 and learner.trainer.params().tolist() == [7.0] * 12
    learner.train(_work(6), 0, 0, 1)
    made = learner.make_update((0, 1))
    assert _values(made.blob).tolist() == [-1.0] * 12 and made.progress.data == [DataRange(6, 2)]


def test_mix_keeps_what_was_trained_and_counts_nothing_merged() -> None:
    learner = _learner(merge="mix")
    learner.adopt(Global(params=torch.zeros(12)))
    learner.train(_work(0, spare=3), 0, 0, 3)
    first = learner.make_update((0, 1))
    assert _values(first.blob).tolist() == [-3.0] * 12
    learner.train(_work(0, spare=3), 0, 3, 2)
    learner.adopt(Global(params=torch.full((12,), 9.0)))
    assert learner.progress.steps == 2 and learner.trainer.params().tolist() == [8.0] * 12
    learner.train(_work(50), 0, 0, 1)
    second = learner.make_update((0, 1))
    assert _values(second.blob).tolist() == [-3.0] * 12, "two spare steps and one new"
    assert second.progress.data == [DataRange(6, 4), DataRange(50, 2)] and second.progress.samples == 6


def test_ranges_of_two_assignments_are_never_joined_though_they_touch() -> None:
    """Each range of a claim must lie in one assignment."""
    learner = _learner(merge="mix")
    learner.adopt(Global(params=torch.zeros(12)))
    learner.train(_work(0), 0, 0, 3)
    learner.adopt(Global(params=torch.ones(12)))
    learner.train(_work(6), 0, 0, 1)
    learner.train(_work(6), 0, 1, 2)
    assert learner.make_update((0, 1)).progress.data == [DataRange(0, 6), DataRange(6, 6)]


def test_a_node_that_misses_many_rounds_begins_again() -> None:
    """What it carries along must fit into a claim."""
    learner = _learner(merge="mix")
    learner.adopt(Global(params=torch.zeros(12)))
    for number in range(MAX_CARRIED):
        assert len(learner.progress.data or ()) == number
        learner.train(_work(20 * number), 0, 0, 1)
        learner.adopt(Global(params=torch.full((12,), 5.0)))
    assert learner.progress.steps == 0 and learner.trainer.params().tolist() == [5.0] * 12
    assert MAX_CARRIED + 1 <= MAX_RANGES, "with the ranges of the next assignment it can be claimed"


def test_starting_over_from_the_same_state_leaves_nothing_of_what_was_trained() -> None:
    learner = _learner(merge="mix")
    state = torch.full((12,), 5.0)
    learner.adopt(Global(params=state))
    learner.train(_work(), 0, 0, 3)
    learner.forget()
    learner.adopt(Global(params=state))
    learner.train(_work(), 0, 0, 1)
    made = learner.make_update((0, 1))
    assert _values(made.blob).tolist() == [-1.0] * 12 and made.progress.data == [DataRange(0, 2)]


def test_forgetting_starts_from_the_next_state_whole() -> None:
    learner = _learner(merge="mix")
    learner.adopt(Global(params=torch.zeros(12)))
    learner.train(_work(), 0, 0, 2)
    learner.forget()
    learner.adopt(Global(params=torch.full((12,), 4.0)))
    assert learner.trainer.params().tolist() == [4.0] * 12 and learner.progress.steps == 0


def test_error_feedback_sends_later_what_it_could_not_send_now() -> None:
    learner = _learner(ToyTrainer(LAYOUT, 2), codec="int8", feedback=True)
    learner.adopt(Global(params=torch.zeros(12)))
    sent, wanted = torch.zeros(12), torch.zeros(12)
    for number in range(8):
        learner.train(_work(6 * number), 0, 0, 3)
        wanted += -learner.trainer.params()
        sent += _values(learner.make_update((0, 1)).blob, "int8")
        learner.adopt(Global(params=torch.zeros(12)))
    assert torch.allclose(sent, wanted, atol=0.02)


def test_private_states_form_a_chain() -> None:
    learner = _learner(ToyTrainer(LAYOUT, 2), codec="int8", feedback=True)
    learner.adopt(Global(params=torch.zeros(12)))
    hashes = []
    for number in range(3):
        learner.train(_work(6 * number), 0, 0, 3)
        learner.make_update((0, 1))
        private = learner.private_state()
        hashes += [private.before, private.after]
        assert private.after == private_id(private.data)
    assert hashes[1] == hashes[2] and hashes[3] == hashes[4] and len(set(hashes)) == 4


def test_after_a_crash_the_next_update_is_the_one_that_would_have_come() -> None:
    def second_update(crash: bool) -> tuple[bytes, str, str]:
        learner = _learner(ToyTrainer(LAYOUT, 2), codec="int8", feedback=True)
        learner.adopt(Global(params=torch.zeros(12)))
        learner.train(_work(), 0, 0, 3)
        learner.make_update((0, 1))
        private = learner.private_state()
        if crash:
            learner = _learner(ToyTrainer(LAYOUT, 2), codec="int8", feedback=True)
            learner.load_local_state(private.data)
        learner.adopt(Global(params=torch.ones(12)))
        learner.train(_work(6), 3, 0, 3)
        blob = learner.make_update((0, 1)).blob
        last = learner.private_state()
        return blob, last.before, last.after

    assert second_update(crash=True) == second_update(crash=False)


def _damaged(residual: bytes) -> bytes:
    return msgspec.msgpack.encode({"trainer": bytes(48), "residual": residual})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"noise",
        msgspec.msgpack.encode({"trainer": b"short", "residual": b""}),
        msgspec.msgpack.encode({"trainer": 5}),
        _damaged(b"123"),
        _damaged(bytes(4 * 11)),
        _damaged(bytes(4 * 13)),
    ],
    ids=["empty", "noise", "short", "other", "no float", "too few", "too many"],
)
def test_a_damaged_private_state_is_told_so(data: bytes) -> None:
    learner = _learner(ToyTrainer(LAYOUT, 2), codec="int8", feedback=True)
    with pytest.raises(ShoalError, match="SH-DISK-02"):
        learner.load_local_state(data)


def test_evaluating_does_not_disturb_training() -> None:
    learner = _learner()
    learner.adopt(Global(params=torch.zeros(12)))
    learner.train(_work(), 0, 0, 2)
    assert learner.evaluate(torch.full((12,), 3.0)) == 3.0
    assert learner.trainer.params().tolist() == [2.0] * 12 and learner.progress.steps == 2


def test_only_the_planned_fragments_are_sent() -> None:
    learner = _learner()
    learner.adopt(Global(params=torch.zeros(12)))
    learner.train(_work(), 0, 0, 1)
    made = learner.make_update((1,))
    assert open_update(made.blob, LAYOUT, (1,), CODECS["none"]()) is not None
    assert open_update(made.blob, LAYOUT, (0, 1), CODECS["none"]()) is None


def test_an_update_that_is_not_finite_is_not_made() -> None:
    learner = _learner()
    learner.adopt(Global(params=torch.zeros(12)))
    learner.trainer.params()[3] = float("nan")
    with pytest.raises(ShoalError, match="SH-CODEC-01"):
        learner.make_update((0, 1))


def test_the_toy_layout_has_the_fragments_these_tests_need() -> None:
    assert len(LAYOUT.fragments) == 2 and make_layout([("a", (1,))]).numel == 1
