import struct

import pytest
import torch

from shoal.codec.base import CHUNK
from shoal.codec.feedback import decode_all, encode_with_feedback
from shoal.codec.powersgd import PowerSgdCodec

RANDOM = torch.Generator().manual_seed(1)


def low_rank(rows: int, columns: int, rank: int) -> torch.Tensor:
    return torch.randn(rows, rank, generator=RANDOM) @ torch.randn(rank, columns, generator=RANDOM)


@pytest.mark.parametrize(("rows", "columns"), [(300, 64), (64, 300), (700, 101)])
def test_a_matrix_of_the_rank_comes_back(rows: int, columns: int) -> None:
    matrix, codec = low_rank(rows, columns, 3), PowerSgdCodec(rank=3, columns=columns)
    found = decode_all(codec, codec.encode(matrix), matrix.numel()).view(rows, columns)
    assert float((found - matrix).norm() / matrix.norm()) < 2e-3


def test_size() -> None:
    codec = PowerSgdCodec(rank=4, columns=1000)
    payload = codec.encode(torch.randn(1_000_000, generator=RANDOM))
    assert len(payload) == codec.size_bytes(1_000_000) == 16 + 2 * 4 * 2000
    assert 8 * len(payload) / 1_000_000 < 0.13


@pytest.mark.parametrize("numel", [1, 2, 63, 64, 65, 100, CHUNK + 5])
def test_any_number_of_values(numel: int) -> None:
    values, codec = torch.randn(numel, generator=RANDOM), PowerSgdCodec(rank=2, columns=64)
    assert bool(torch.isfinite(decode_all(codec, codec.encode(values), numel)).all())


def test_the_seed_decides() -> None:
    values, codec = torch.randn(10_000, generator=RANDOM), PowerSgdCodec(rank=2, columns=100)
    assert codec.encode(values, 1) == codec.encode(values, 1) != codec.encode(values, 2)


def test_zeros_and_extremes() -> None:
    codec = PowerSgdCodec(columns=10)
    assert torch.count_nonzero(decode_all(codec, codec.encode(torch.zeros(95)), 95)) == 0
    for scale in (1e-40, 1e30):
        values = torch.ones(95) * scale
        assert torch.allclose(decode_all(codec, codec.encode(values), 95) / scale, torch.ones(95), atol=2e-2)


def test_with_feedback_everything_arrives() -> None:
    update, codec = torch.randn(2000, generator=RANDOM), PowerSgdCodec(rank=4, columns=40)
    residual, total, rounds = torch.zeros(2000), torch.zeros(2000), 200
    for seed in range(rounds):
        payload, residual = encode_with_feedback(codec, update, residual, seed)
        total += decode_all(codec, payload, 2000)
    assert float((total / rounds - update).norm() / update.norm()) < 0.1


@pytest.mark.parametrize(("rank", "columns"), [(0, 8), (65, 8), (4, 0), (4, CHUNK + 1)])
def test_wrong_parameters_are_refused(rank: int, columns: int) -> None:
    with pytest.raises(ValueError, match="must be from"):
        PowerSgdCodec(rank, columns)


def test_hostile_factors_are_refused() -> None:
    codec = PowerSgdCodec(rank=1, columns=4)
    sound = codec.encode(torch.ones(8))
    assert codec.open(memoryview(sound), 8) is not None
    for scale in (float("nan"), float("inf"), 3e38):
        assert codec.open(memoryview(struct.pack("<f", scale) + sound[4:]), 8) is None
    for factor in (float("nan"), float("inf"), 1.001):
        assert codec.open(memoryview(sound[:-2] + struct.pack("<e", factor)), 8) is None
