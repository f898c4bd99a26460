"""A graft moves parameters, the same everywhere, and nothing else."""

import pytest
import torch

from shoal.base.errors import ShoalError
from shoal.base.layout import make_layout
from shoal.replica.graft import apply_graft, encode_graft
from shoal.replica.state import State, state_hash

LAYOUT = make_layout([("a", (3,)), ("b", (5,))], 2)


def _state() -> State:
    return State(LAYOUT, torch.arange(8.0), {"momentum": torch.ones(8)}, (3, 4))


def test_it_moves_the_parameters_and_leaves_the_momentum() -> None:
    before = _state()
    after = apply_graft(before, encode_graft(torch.full((8,), 0.5), LAYOUT))
    assert after.params.tolist() == [value + 0.5 for value in range(8)]
    assert after.slots["momentum"].tolist() == [1.0] * 8 and after.steps == (3, 4)
    assert before.params.tolist() == list(range(8)), "a state is never changed in place"


@pytest.mark.parametrize("blob", [b"", b"junk", b"shoal-update-1\n\x00\x00\x00\x00"])
def test_what_is_no_graft_moves_nothing(blob: bytes) -> None:
    assert state_hash(apply_graft(_state(), blob)) == state_hash(_state())


def test_a_graft_of_another_layout_moves_nothing() -> None:
    other = make_layout([("a", (4,)), ("b", (5,))], 2)
    blob = encode_graft(torch.ones(9), other)
    assert state_hash(apply_graft(_state(), blob)) == state_hash(_state())


def test_no_graft_makes_the_state_infinite() -> None:
    huge = encode_graft(torch.full((8,), 3e38), LAYOUT)
    state = apply_graft(apply_graft(_state(), huge), huge)
    assert bool(torch.isfinite(state.params).all())


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(ShoalError) as caught:
        encode_graft(torch.tensor([float("nan")] * 8), LAYOUT)
    assert caught.value.code == "SH-CODEC-01"
