"""Two nodes meet: each goes towards the other's model, and what either sends is the whole way from the common state."""

import pytest
import torch
from runlog.small_log import small_recipe

from shoal.base.ids import BlobId
from shoal.node.learner import Global, Learner, MadeUpdate, Met
from shoal.node.progress import Unsettled
from shoal.replica.fold import SealedBlob
from shoal.replica.update import encode_update

from .test_learner import ITEMS, LAYOUT, Ruler, _values, _work

COMMON = torch.full((12,), 10.0)


def _learner(alpha: float = 0.5) -> Learner:
    strategy = {
        "preset": "gossip",
        "codec": {"kind": "none"},
        "merge": {"kind": "pairs", "global_every": 3, "alpha": alpha},
    }
    learner = Learner(Ruler(LAYOUT), small_recipe(strategy=strategy), ITEMS)
    learner.adopt(Global(params=COMMON))
    return learner


def _claimed(learner: Learner, steps: int, sequence: int, start: int = 0) -> MadeUpdate:
    learner.train(_work(start, steps), 0, 0, steps)
    made = learner.make_update((0, 1))
    learner.sent(Unsettled(sequence, 1, BlobId("b"), (0, 1)))
    return made


def _met(mine: MadeUpdate | None, theirs: MadeUpdate | None, sequence: int = 0) -> Met:
    return Met(
        position=7,
        sequence=sequence,
        fragments=(0, 1),
        mine=SealedBlob(mine.blob, 1) if mine else None,
        theirs=SealedBlob(theirs.blob, 1) if theirs else None,
    )


def _model(learner: Learner) -> float:
    values = learner.trainer.params()
    assert torch.equal(values, values[:1].expand(12))
    return float(values[0])


def test_partners_go_on_from_the_same_model() -> None:
    one, two = _learner(), _learner()
    first, second = _claimed(one, 1, 0), _claimed(two, 3, 0)
    assert one.meet(_met(first, second)) and two.meet(_met(second, first))
    assert _model(one) == _model(two) == 12.0


def test_a_share_of_the_way() -> None:
    one, two = _learner(alpha=0.25), _learner()
    first, second = _claimed(one, 1, 0), _claimed(two, 5, 0)
    one.meet(_met(first, second))
    assert _model(one) == 12.0


def test_the_next_update_is_the_whole_way_from_the_common_state() -> None:
    one, two = _learner(), _learner()
    first, second = _claimed(one, 1, 0), _claimed(two, 3, 0)
    one.meet(_met(first, second))
    made = _claimed(one, 2, 1, start=6)
    assert _values(made.blob).tolist() == [-4.0] * 12, "2 that the pair had, 2 trained since"
    assert made.progress.steps == 2, "samples are counted once all the same"
    one.adopt(Global(params=torch.full((12,), 20.0), position=9, fragments=(0, 1)))
    assert _model(one) == 20.0, "everybody's round ends what was local"
    assert _values(_claimed(one, 1, 2, start=10).blob).tolist() == [-1.0] * 12


def test_steps_trained_after_the_claim_stay() -> None:
    one, two = _learner(), _learner()
    first, second = _claimed(one, 1, 0), _claimed(two, 3, 0)
    one.train(_work(6, 2), 0, 0, 2)
    one.meet(_met(first, second))
    assert _model(one) == 14.0
    assert [(taken.position, taken.step) for taken in one.progress.merges] == [(7, 2)]


def test_who_gets_no_update_goes_on_alone() -> None:
    learner = _learner()
    made = _claimed(learner, 3, 0)
    assert not learner.meet(_met(made, None)) and _model(learner) == 13.0


@pytest.mark.parametrize("junk", [b"", b"junk", b"shoal-update-1\n" + b"\xff" * 40])
def test_what_is_no_update_is_nobody(junk: bytes) -> None:
    learner = _learner()
    _claimed(learner, 3, 0)
    met = Met(position=7, sequence=0, fragments=(0, 1), mine=None, theirs=SealedBlob(junk, 1))
    assert not learner.meet(met) and _model(learner) == 13.0


def test_a_model_beyond_all_numbers_is_nobodys() -> None:
    learner = _learner()
    made = _claimed(learner, 3, 0)
    values = torch.tensor([3e38] * 12).neg().numpy().tobytes()
    learner.adopt(Global(params=torch.full((12,), 3e38)))
    huge = MadeUpdate(blob=encode_update([(0, values[:32]), (1, values[32:])]), progress=made.progress)
    assert _values(huge.blob).tolist() == pytest.approx([-3e38] * 12)
    assert not learner.meet(_met(None, huge))
    assert bool(torch.isfinite(learner.trainer.params()).all())


def test_a_restarted_node_takes_up_its_own_model_from_its_update() -> None:
    one, two = _learner(), _learner()
    first, second = _claimed(one, 1, 0), _claimed(two, 3, 0)
    again = _learner()
    assert _model(again) == 10.0
    assert again.meet(_met(first, second)) and _model(again) == 12.0
    lonely = _learner()
    lonely.meet(_met(first, None))
    assert _model(lonely) == 11.0
    assert _values(_claimed(lonely, 1, 1, start=6).blob).tolist() == [-2.0] * 12


def test_other_rules_meet_nobody() -> None:
    learner = Learner(Ruler(LAYOUT), small_recipe(), ITEMS)
    learner.adopt(Global(params=COMMON))
    made = _claimed(learner, 1, 0)
    assert not learner.meet(_met(made, made))
