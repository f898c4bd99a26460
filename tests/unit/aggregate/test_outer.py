import torch

from shoal.aggregate import OUTER_OPTIMIZERS


def test_sgd_at_rate_one_is_plain_averaging() -> None:
    params, update = torch.tensor([3.0, 5.0]), torch.tensor([1.0, -1.0])
    OUTER_OPTIMIZERS["sgd"]().step(params, {}, update)
    assert params.tolist() == [2.0, 6.0]


def test_nesterov_looks_ahead() -> None:
    outer = OUTER_OPTIMIZERS["nesterov"](lr=0.5, momentum=0.5)
    assert outer.slots == ("momentum",)
    params, slots = torch.tensor([0.0]), {"momentum": torch.tensor([2.0])}
    outer.step(params, slots, torch.tensor([4.0]))
    assert slots["momentum"].tolist() == [5.0]
    assert params.tolist() == [-(4.0 + 5.0 * 0.5) * 0.5]
