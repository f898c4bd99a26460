"""Norms and inner products against exact rational arithmetic, and against the tree written out."""

import math
from fractions import Fraction

import pytest
import torch

from shoal.aggregate.exact import BlockProducts, Halving, gram, norm_of, norms, square_root
from shoal.aggregate.mean import weighted_sum
from shoal.aggregate.sketch import Vector
from shoal.codec.base import CHUNK

from .gatherings import Plain

CPU = torch.device("cpu")
SIZES = [1, 2, 511, 513, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 77]


def _values(numel: int, seed: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def _tree(values: list[float]) -> float:
    length = 1 << (len(values) - 1).bit_length()
    values = values + [0.0] * (length - len(values))
    while len(values) > 1:
        half = len(values) // 2
        values = [low + high for low, high in zip(values[:half], values[half:], strict=True)]
    return values[0]


@pytest.mark.parametrize("numel", SIZES)
def test_sums_are_the_tree_written_out(numel: int) -> None:
    one, two = _values(numel, 1), _values(numel, 2)
    found = gram([Plain(one), Plain(two)], numel, CPU)
    for (i, left), (j, right) in [((0, one), (0, one)), ((0, one), (1, two)), ((1, two), (1, two))]:
        products = [a * b for a, b in zip(left.tolist(), right.tolist(), strict=True)]
        chunks = [products[start : start + CHUNK] for start in range(0, numel, CHUNK)]
        expected = _tree([_tree(chunk + [0.0] * (CHUNK - len(chunk))) for chunk in chunks])
        assert found[i][j] == expected and found[j][i] == expected
    assert norms([Plain(one), Plain(two)], numel, CPU) == [math.sqrt(found[i][i]) for i in range(2)]


def test_sums_are_nearly_exact() -> None:
    values = _values(5000, 3)
    exact = sum(Fraction(value) ** 2 for value in values.tolist())
    assert norms([Plain(values)], 5000, CPU)[0] == pytest.approx(math.sqrt(exact), rel=1e-15)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_do_not_matter(threads: int) -> None:
    sources = [Plain(_values(7 * CHUNK + 5, seed)) for seed in range(3)]
    combine = weighted_sum(sources, [0.2, 0.3, 0.5])
    before = torch.get_num_threads()
    found = []
    try:
        for number in (1, threads):
            torch.set_num_threads(number)
            numel = 7 * CHUNK + 5
            found.append((gram(sources, numel, CPU), norm_of(combine, numel, CPU)))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


def test_the_largest_and_smallest_values_have_lengths() -> None:
    large, small = torch.full((40_000,), 3.4e38), torch.full((40_000,), 1e-45)
    found = norms([Plain(large), Plain(small), Plain(torch.zeros(40_000))], 40_000, CPU)
    assert found[0] == pytest.approx(3.4e38 * 200) and found[1] == pytest.approx(1.4e-45 * 200, rel=0.01)
    assert found[2] == 0.0


def test_blocks_have_their_own_sums() -> None:
    left, right = _values(1000, 4), _values(1000, 5)
    products = BlockProducts(1000, 256, CPU)
    products(right, right)  # What was there before must not matter.
    found = products(left, right).tolist()
    for block in range(4):
        part = slice(256 * block, min(256 * block + 256, 1000))
        terms = [a * b for a, b in zip(left[part].tolist(), right[part].tolist(), strict=True)]
        assert found[block] == _tree(terms + [0.0] * (256 - len(terms)))


def test_halving_stops_where_it_is_told() -> None:
    assert Halving(torch.arange(8.0), 2)().tolist() == [0.0 + 4 + 2 + 6, 1.0 + 5 + 3 + 7]


def test_roots_are_correctly_rounded() -> None:
    """Which `torch.sqrt` is not, on a CPU: it goes to MKL, and one in six is off by a bit."""
    random = torch.Generator().manual_seed(6)
    values = torch.randint(1, 0x7F7F_FFFF, (50_000,), generator=random, dtype=torch.int32).view(torch.float32)
    expected = [
        math.sqrt(value) for value in values.tolist()
    ]  # Rounding that once more to float32 is harmless.
    assert torch.equal(square_root(values.clone()), torch.tensor(expected, dtype=torch.float32))
    wide = values.double() * (1 + 2.0**-40)
    assert square_root(wide.clone()).tolist() == [math.sqrt(value) for value in wide.tolist()]


def test_nothing_has_no_length() -> None:
    assert norms([Vector(torch.empty(0))], 0, CPU) == [0.0]


@pytest.mark.parametrize("numel", [CHUNK, 4 * CHUNK, 4 * CHUNK + 1, 9 * CHUNK - 3])
def test_longer_ranges_change_no_bit(numel: int) -> None:
    values = _values(numel, 5)
    before = torch.get_num_threads()
    try:
        found = []
        for threads, source in ((1, Vector(values)), (2, Vector(values)), (1, Plain(values))):
            torch.set_num_threads(threads)
            found.append(norms([source, source], numel, CPU))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]
