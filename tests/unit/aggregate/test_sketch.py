"""Sketches: near the truth for everybody who could not know the signs, and the same bits whatever the threads."""

import pytest
import torch

from shoal.aggregate.exact import gram
from shoal.aggregate.sketch import EXACT_CHUNKS, Vector, inner_products, sketches
from shoal.codec import CODECS
from shoal.codec.base import CHUNK

CPU = torch.device("cpu")
LONG = (EXACT_CHUNKS + 4) * CHUNK + 123


def rows(kind: str) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    noise = [torch.randn(LONG, generator=random) for _ in range(3)]
    one = torch.zeros(LONG)
    one[LONG - 5] = 2000.0
    repeated = torch.randn(CHUNK, generator=random).repeat(LONG // CHUNK + 1)[:LONG]
    return {
        "noise": noise,
        "constant": [torch.ones(LONG), -torch.ones(LONG), noise[0]],
        "one value": [one, noise[0], noise[1]],
        "repeated": [repeated, noise[0], repeated + noise[1]],
    }[kind]


def apart(products: list[list[float]], i: int, j: int) -> float:
    return products[i][i] + products[j][j] - 2 * products[i][j]


@pytest.mark.parametrize("seed", ["a", "b", "c", "d"])
@pytest.mark.parametrize("kind", ["noise", "constant", "one value", "repeated"])
def test_distances_are_within_a_few_hundredths(kind: str, seed: str) -> None:
    sources = [Vector(row) for row in rows(kind)]
    true, found = gram(sources, LONG, CPU), inner_products(sources, LONG, CPU, seed)
    for i in range(3):
        for j in range(i):
            # What is the same in every chunk may add up, or cancel, within a group of them.
            most = 1.0 if kind in ("constant", "repeated") else 0.06
            assert abs(apart(found, i, j) / apart(true, i, j) - 1) < most


@pytest.mark.parametrize(("numel", "seed"), [(EXACT_CHUNKS * CHUNK, "a"), (LONG, None)])
def test_few_chunks_and_rounds_without_a_seed_are_compared_exactly(numel: int, seed: str | None) -> None:
    sources = [Vector(row[:numel]) for row in rows("noise")]
    assert inner_products(sources, numel, CPU, seed) == gram(sources, numel, CPU)


def test_threads_do_not_change_a_bit_and_seeds_do() -> None:
    sources, before, found = [Vector(row) for row in rows("noise")], torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(sketches(sources, LONG, CPU, "a"))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert not torch.equal(found[0], sketches(sources, LONG, CPU, "b"))


def test_the_largest_values_do_not_overflow() -> None:
    sources = [Vector(torch.full((LONG,), value)) for value in (3.4e38, -3.4e38, 1e-45)]
    found = inner_products(sources, LONG, CPU, "a")
    assert all(abs(value) < 1e90 for row in found for value in row)


def test_a_sparse_update_has_the_sketch_of_what_it_decodes_to() -> None:
    codec, values = CODECS["chunked-top-k"](), rows("noise")[0]
    opened = codec.open(memoryview(codec.encode(values)), LONG)
    assert opened is not None
    dense = torch.empty(LONG)
    for start in range(0, LONG, CHUNK):
        opened.decode(start, min(start + CHUNK, LONG), 1.0, dense[start : start + CHUNK])
    found = sketches([opened, Vector(dense)], LONG, CPU, "a")
    assert torch.equal(found[0], found[1])
