import pytest
import torch

from shoal.base.errors import ShoalError
from shoal.training.device import make_repeatable, pick_device


def test_auto_finds_something_that_works() -> None:
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["abacus", "cuda:99", "", "meta"])
def test_unusable_devices_are_named(name: str) -> None:
    with pytest.raises(ShoalError, match="SH-DEVICE-01"):
        pick_device(name)


def test_the_cpu_needs_no_switch() -> None:
    make_repeatable(torch.device("cpu"))
    assert not torch.are_deterministic_algorithms_enabled()
