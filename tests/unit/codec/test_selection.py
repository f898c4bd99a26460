import numpy as np
import pytest
import torch

from shoal.codec.selection import largest


def by_sorting(values: torch.Tensor, width: int, keep: int) -> list[int]:
    """The same by a stable sort of each row, one at a time."""
    found: list[int] = []
    rows = values.abs().numpy().reshape(-1, width)
    for number, row in enumerate(rows):
        order = np.argsort(-row, kind="stable")[:keep]
        found += sorted(number * width + int(i) for i in order if row[i] > 0)
    return found


def drawn(numel: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("numel", "width", "keep"),
    [(1, 1, 1), (7, 7, 3), (64, 16, 16), (64, 16, 1), (8192, 4096, 128), (1 << 21, 4096, 4), (65536, 16, 2)],
)
def test_rows_give_their_largest(numel: int, width: int, keep: int) -> None:
    values = drawn(numel)
    positions, kept = largest(values, width, keep)
    assert positions.tolist() == by_sorting(values, width, keep)
    assert np.array_equal(kept, values.numpy()[positions])


@pytest.mark.parametrize("keep", [1, 5, 1000, 70_000, 600_000, 699_999, 700_000])
def test_one_long_row(keep: int) -> None:
    values = drawn(700_000)
    assert largest(values, len(values), keep)[0].tolist() == by_sorting(values, len(values), keep)


@pytest.mark.parametrize("width", [1 << 12, 1 << 20, 1 << 21])
@pytest.mark.parametrize("kinds", [1, 2, 5])
def test_equal_ones_by_the_lowest_index(width: int, kinds: int) -> None:
    values = (drawn(1 << 21).abs() * kinds).ceil().clamp(max=kinds) * torch.sign(drawn(1 << 21, 1))
    assert largest(values, width, width // 10)[0].tolist() == by_sorting(values, width, width // 10)


def test_zeros_are_never_kept() -> None:
    values = torch.zeros(5000)
    values[[7, 4000]] = torch.tensor([-1e-45, 2.0])
    assert largest(values, 5000, 100)[0].tolist() == [7, 4000]
    assert largest(-values, 1000, 3)[0].tolist() == [7, 4000]
    assert largest(torch.zeros(64), 16, 2)[0].tolist() == []


def test_a_guess_that_sees_nothing_does_not_decide() -> None:
    """What is looked at to guess, every so many values, is larger, or smaller, than all the rest."""
    for inside, outside in ((0.0, 1.0), (1.0, 0.0), (100.0, 1.0), (1.0, 100.0)):
        values = drawn(1 << 20).abs() + outside
        values[::256] = values[::256] - outside + inside
        for width in (1 << 20, 1 << 12):
            keep = width // 100
            assert largest(values, width, keep)[0].tolist() == by_sorting(values, width, keep)


@pytest.mark.parametrize("large", range(19_895, 19_901))
def test_the_guess_may_lie_just_at_the_cut(large: int) -> None:
    """So many large values where the guess does not look that, with those it sees above its own, all are found."""
    values = torch.full((1 << 16,), 0.5)
    values[::128] = 1 + torch.arange(512) / 1024
    values[torch.arange(large) * 2 + 1] = 2.0
    assert largest(values, 1 << 16, 20_000)[0].tolist() == by_sorting(values, 1 << 16, 20_000)


def test_one_value_in_the_largest_float_and_the_smallest() -> None:
    values = torch.tensor([3.4028235e38, 1e-45, -3.4028235e38, -1e-45])
    assert largest(values, 4, 2)[0].tolist() == [0, 2]
    assert largest(values, 2, 1)[0].tolist() == [0, 2]
