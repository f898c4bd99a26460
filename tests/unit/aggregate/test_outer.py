import pytest
import torch

from shoal.aggregate import OUTER_OPTIMIZERS
from shoal.aggregate.adam import power
from shoal.aggregate.base import OuterOptimizer


def _walk(outer: OuterOptimizer, updates: list[list[float]]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    params = torch.zeros(len(updates[0]))
    slots = {name: torch.zeros_like(params) for name in outer.slots}
    for taken, update in enumerate(updates):
        outer.step(params, slots, torch.tensor(update), taken if outer.counts else 0)
    return params, slots


def test_sgd_at_rate_one_is_plain_averaging() -> None:
    params, update = torch.tensor([3.0, 5.0]), torch.tensor([1.0, -1.0])
    OUTER_OPTIMIZERS["sgd"]().step(params, {}, update, 0)
    assert params.tolist() == [2.0, 6.0]


def test_nesterov_looks_ahead() -> None:
    outer = OUTER_OPTIMIZERS["nesterov"](lr=0.5, momentum=0.5)
    assert outer.slots == ("momentum",)
    params, slots = torch.tensor([0.0]), {"momentum": torch.tensor([2.0])}
    outer.step(params, slots, torch.tensor([4.0]), 0)
    assert slots["momentum"].tolist() == [5.0]
    assert params.tolist() == [-(4.0 + 5.0 * 0.5) * 0.5]


UPDATES = [[0.3, -0.7], [0.1, 0.2], [-0.5, 0.4], [0.25, 0.9], [0.6, -0.1]]


def test_delayed_nesterov_of_period_one_is_nesterov() -> None:
    delayed, slots = _walk(OUTER_OPTIMIZERS["delayed-nesterov"](period=1), UPDATES)
    plain, momentum = _walk(OUTER_OPTIMIZERS["nesterov"](), UPDATES)
    assert torch.equal(delayed, plain) and torch.equal(slots["momentum"], momentum["momentum"])


def test_delayed_nesterov_takes_a_period_as_one_step_on_its_sum() -> None:
    outer = OUTER_OPTIMIZERS["delayed-nesterov"](lr=0.5, momentum=0.5, period=2)
    params, slots = _walk(outer, [[1.0]])
    assert params.tolist() == [-0.5] and slots["momentum"].tolist() == [0.0]
    params, slots = _walk(outer, [[1.0], [3.0], [5.0], [7.0]])
    plain, momentum = _walk(OUTER_OPTIMIZERS["nesterov"](lr=0.5, momentum=0.5), [[4.0], [12.0]])
    assert torch.equal(params, plain) and torch.equal(slots["momentum"], momentum["momentum"])
    assert slots["pending"].tolist() == [0.0]


def test_adam_moves_by_its_rate_at_first_whatever_the_size() -> None:
    params, _ = _walk(OUTER_OPTIMIZERS["adam"](lr=0.1), [[1e-3, -1e3, 0.0]])
    assert torch.allclose(params, torch.tensor([-0.1, 0.1, 0.0]), rtol=1e-4)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.5), (0.0, 0.0)])
def test_adam_agrees_with_the_library(betas: tuple[float, float]) -> None:
    outer = OUTER_OPTIMIZERS["adam"](lr=0.01, beta1=betas[0], beta2=betas[1], eps=1e-6)
    params, _ = _walk(outer, UPDATES)
    weights = torch.nn.Parameter(torch.zeros(2))
    library = torch.optim.Adam([weights], lr=0.01, betas=betas, eps=1e-6)
    for update in UPDATES:
        weights.grad = torch.tensor(update)
        library.step()
    assert torch.allclose(params, weights.detach(), rtol=1e-4)


def test_a_frozen_variance_stays() -> None:
    outer = OUTER_OPTIMIZERS["adam"](lr=0.01, freeze_after=2)
    _, warm = _walk(outer, UPDATES[:2])
    _, after = _walk(outer, UPDATES)
    assert torch.equal(warm["variance"], after["variance"])
    _, free = _walk(OUTER_OPTIMIZERS["adam"](lr=0.01), UPDATES)
    assert torch.equal(free["momentum"], after["momentum"])
    assert not torch.equal(free["variance"], after["variance"])


def test_what_had_not_moved_when_the_variance_froze_takes_it_from_its_first_update() -> None:
    outer = OUTER_OPTIMIZERS["adam"](lr=0.01, freeze_after=2)
    params, slots = _walk(outer, [[0.3, 0.0], [0.1, 0.0], [0.2, 5.0], [0.2, 7.0]])
    assert float(slots["variance"][1]) == pytest.approx(25.0 * (1 - 0.999**2), rel=1e-5)
    assert abs(float(params[1])) < 0.03


def test_powers_are_products() -> None:
    assert power(0.9, 0) == 1.0 and power(0.5, 10) == 0.5**10
    assert power(0.999, 12345) == pytest.approx(0.999**12345)


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("sgd", {"lr": 0.0}),
        ("nesterov", {"momentum": 1.0}),
        ("delayed-nesterov", {"period": 0}),
        ("delayed-nesterov", {"momentum": -0.1}),
        ("adam", {"beta1": 1.0}),
        ("adam", {"beta2": 1.0}),
        ("adam", {"eps": 0.0}),
        ("adam", {"freeze_after": -1}),
    ],
)
def test_senseless_parameters_are_refused(kind: str, parameters: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        OUTER_OPTIMIZERS[kind](**parameters)
