"""Outer optimisers that take the real step: signs, Adam with decay, 1-bit Adam, and the factor on every rate."""

import math

import pytest
import torch

from shoal.aggregate import OUTER_OPTIMIZERS
from shoal.aggregate.base import OuterOptimizer, Preparing
from shoal.aggregate.onebit import OneBitAdam

GRADIENTS = [[0.3, -0.7], [0.1, 0.2], [-0.5, 0.4], [0.25, 0.9], [0.6, -0.1]]
RATES = [0.25, 1.0, 0.5, 0.75, 0.1]


def _slots(outer: OuterOptimizer, size: int = 2) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(size) for name in outer.slots}


def test_a_sign_step_has_the_rates_size_and_none_where_there_is_nothing() -> None:
    params = torch.tensor([1.0, -2.0, 0.5, -0.0])
    OUTER_OPTIMIZERS["sign"](lr=0.25).step(params, {}, torch.tensor([3.0, -1e-30, 0.0, -0.0]), 0)
    assert params.tolist() == [0.75, -1.75, 0.5, 0.0]
    assert math.copysign(1, float(params[3])) == -1, "left as it was, to the bit"


@pytest.mark.parametrize("kind", ["sign", "adam", "onebit-adam"])
def test_weight_decay_is_decoupled_and_follows_the_rate(kind: str) -> None:
    outer = OUTER_OPTIMIZERS[kind](lr=0.5, weight_decay=0.2)
    params = torch.tensor([4.0])
    outer.step(params, _slots(outer, 1), torch.tensor([0.0]), 0, rate=0.5)
    assert params.tolist() == pytest.approx([4.0 * (1 - 0.5 * 0.5 * 0.2)])


@pytest.mark.parametrize("kind", ["sign", "adam", "onebit-adam"])
@pytest.mark.parametrize("decay", [-0.1, 2.0, float("nan")])
def test_a_senseless_decay_is_refused(kind: str, decay: float) -> None:
    with pytest.raises(ValueError, match="weight_decay"):
        OUTER_OPTIMIZERS[kind](lr=0.5, weight_decay=decay)


def test_adam_with_decay_and_a_schedule_agrees_with_the_library() -> None:
    outer = OUTER_OPTIMIZERS["adam"](lr=0.01, weight_decay=0.1, eps=1e-6)
    params, slots = torch.tensor([1.0, -1.0]), _slots(outer)
    weights = torch.nn.Parameter(params.clone())
    library = torch.optim.AdamW([weights], lr=0.01, weight_decay=0.1, eps=1e-6)
    for taken, (gradient, rate) in enumerate(zip(GRADIENTS, RATES, strict=True)):
        outer.step(params, slots, torch.tensor(gradient), taken, rate)
        library.param_groups[0]["lr"] = 0.01 * rate
        weights.grad = torch.tensor(gradient)
        library.step()
    assert torch.allclose(params, weights.detach(), rtol=1e-5)


@pytest.mark.parametrize("kind", sorted(OUTER_OPTIMIZERS))
def test_a_rate_is_a_factor_on_the_optimisers_own(kind: str) -> None:
    half, whole = OUTER_OPTIMIZERS[kind](lr=0.25), OUTER_OPTIMIZERS[kind](lr=0.5)
    params, expected = torch.zeros(2), torch.zeros(2)
    slots, others = _slots(half), _slots(whole)
    for taken, gradient in enumerate(GRADIENTS):
        half.step(expected, others, torch.tensor(gradient), taken)
        whole.step(params, slots, torch.tensor(gradient), taken, 0.5)
    assert torch.equal(params, expected) and bool(params.ne(0).all())


def _one_bit(frozen: int) -> OneBitAdam:
    return OneBitAdam(lr=0.01, freeze_after=frozen)


def test_one_bit_adam_is_adam_with_a_frozen_variance_if_nothing_is_lost() -> None:
    outer, plain = _one_bit(2), OUTER_OPTIMIZERS["adam"](lr=0.01, freeze_after=2)
    assert isinstance(outer, Preparing) and not isinstance(plain, Preparing)
    params, expected, slots, others = torch.zeros(2), torch.zeros(2), _slots(outer), _slots(plain)
    for taken, gradient in enumerate(GRADIENTS):
        sent = outer.outgoing(torch.tensor(gradient), slots, taken)
        outer.step(params, slots, sent, taken)
        plain.step(expected, others, torch.tensor(gradient), taken)
        assert torch.allclose(params, expected, rtol=1e-5)
        assert torch.allclose(slots["momentum"], others["momentum"], rtol=1e-6)
        assert torch.equal(slots["variance"], others["variance"])


def test_the_momentum_is_what_was_sent_and_the_mean_of_what_nodes_send() -> None:
    outer = _one_bit(1)
    slots = {"momentum": torch.tensor([1.0, -1.0]), "variance": torch.ones(2)}
    gradients = [torch.tensor(gradient) for gradient in GRADIENTS[:2]]
    sent = torch.stack([outer.outgoing(gradient, slots, 5) for gradient in gradients]).mean(dim=0)
    assert torch.allclose(sent, slots["momentum"] * 0.9 + torch.stack(gradients).mean(dim=0) * 0.1)
    assert outer.outgoing(gradients[0], slots, 0) is gradients[0], "gradients while the variance is learnt"
    outer.step(torch.zeros(2), slots, sent.clone(), 5)
    assert torch.equal(slots["momentum"], sent) and slots["variance"].tolist() == [1.0, 1.0]


def test_what_had_not_moved_takes_its_variance_from_the_gradient_behind_its_first_momentum() -> None:
    outer, slots = _one_bit(2), {"momentum": torch.zeros(2), "variance": torch.tensor([1.0, 0.0])}
    outer.step(torch.zeros(2), slots, torch.tensor([0.5, 0.5]), 2)
    assert slots["variance"].tolist() == pytest.approx([1.0, (0.5 / 0.1) ** 2 * (1 - 0.999**2)], rel=1e-4)


def test_a_variance_that_is_never_learnt_is_refused() -> None:
    with pytest.raises(ValueError, match="freeze_after"):
        OneBitAdam(freeze_after=0)
