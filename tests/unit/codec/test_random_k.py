import struct

import numpy as np
import pytest
import torch

from shoal.base.errors import ShoalError
from shoal.codec.base import CHUNK
from shoal.codec.feedback import decode_all
from shoal.codec.random_k import RandomKCodec

GOLDEN = [3, 8, 12, 15, 22, 28, 32, 35]


def places(codec: RandomKCodec, numel: int, seed: int) -> list[int]:
    return decode_all(codec, codec.encode(torch.ones(numel), seed), numel).nonzero().view(-1).tolist()


@pytest.mark.parametrize("numel", [1, 2, 9, 10, 11, 1000, CHUNK, 2 * CHUNK + 77])
@pytest.mark.parametrize("bits", [16, 32])
def test_density_and_size(numel: int, bits: int) -> None:
    codec = RandomKCodec(0.1, bits)
    kept = max(1, round(0.1 * numel))
    assert len(codec.encode(torch.ones(numel), 5)) == 16 + kept * bits // 8
    assert len(places(codec, numel, 5)) == kept


def test_the_seed_alone_says_where() -> None:
    codec = RandomKCodec(0.1, 32)
    assert places(codec, 1000, 1) == places(codec, 1000, 1) != places(codec, 1000, 2)
    assert places(RandomKCodec(0.1, 32, scaled=True), 1000, 1) == places(codec, 1000, 1)
    assert places(codec, 1000, 2**64 + 7) == places(codec, 1000, 7), "any whole number is a seed"
    assert places(codec, 1000, -1) == places(codec, 1000, 2**64 - 1)


def test_the_stream_is_the_one_that_runs_were_made_with() -> None:
    """If this fails, old updates decode to other places: keep the generator."""
    assert places(RandomKCodec(0.2, 32), 40, 12345) == GOLDEN


def test_the_values_at_the_places_are_kept() -> None:
    values = torch.randn(500, generator=torch.Generator().manual_seed(0))
    decoded = decode_all(RandomKCodec(0.2, 32), RandomKCodec(0.2, 32).encode(values, 9), 500)
    assert torch.equal(decoded[decoded != 0], values[decoded != 0])


def test_every_place_is_drawn_and_scaled_values_are_right_on_average() -> None:
    values = torch.arange(1.0, 24.0)
    codec, total = RandomKCodec(0.25, 32, scaled=True), torch.zeros(23, dtype=torch.float64)
    for seed in range(4000):
        total += decode_all(codec, codec.encode(values, seed), 23)
    assert float(((total / 4000 - values) / values).abs().max()) < 0.15


def test_a_scaled_value_that_overflows_is_not_published() -> None:
    with pytest.raises(ShoalError, match=r"SH-CODEC-01.*too large"):
        RandomKCodec(0.1, 32, scaled=True).encode(torch.full((100,), 3e38), 0)


def test_parameters() -> None:
    for density in (0.0, -1.0, 0.26):
        with pytest.raises(ValueError, match="density"):
            RandomKCodec(density)
    with pytest.raises(ValueError, match="16, 32"):
        RandomKCodec(bits=1)


def test_hostile_bytes_are_refused() -> None:
    codec = RandomKCodec(0.25, 32)
    good = struct.pack("<QQ2f", 2**64 - 1, 8, 1.0, -2.0)
    assert codec.open(memoryview(good), 8) is not None
    assert codec.open(memoryview(good), 9) is None, "as many are kept of nine"
    for size in range(len(good)):
        assert codec.open(memoryview(good[:size]), 8) is None
    assert codec.open(memoryview(good + b"\0"), 8) is None
    for value in (np.nan, np.inf):
        assert codec.open(memoryview(struct.pack("<QQ2f", 1, 8, 1.0, value)), 8) is None
