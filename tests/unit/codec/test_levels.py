"""One, two and four bits a value: sizes, packing, and how near the levels come."""

import struct

import pytest
import torch

from shoal.base.errors import ShoalError
from shoal.codec.base import CHUNK
from shoal.codec.feedback import decode_all
from shoal.codec.levels import LevelCodec, int4, one_bit, two_bit

NORMAL = torch.randn(1 << 16, generator=torch.Generator().manual_seed(1))
UNIFORM = torch.rand(1 << 16, generator=torch.Generator().manual_seed(2)) - 0.5
LAPLACE = -UNIFORM.sign() * torch.log1p(-2 * UNIFORM.abs())


def decoded(codec: LevelCodec, values: torch.Tensor) -> torch.Tensor:
    return decode_all(codec, codec.encode(values), values.numel())


def lost(codec: LevelCodec, values: torch.Tensor) -> float:
    """Of the energy, what is lost."""
    return float((decoded(codec, values) - values).square().sum() / values.square().sum())


@pytest.mark.parametrize("numel", [1, 3, 4, 7, 8, 9, 4095, 4096, 4097, CHUNK + 1])
def test_sizes(numel: int) -> None:
    chunks, blocks = -(-numel // 4096), -(-numel // 128)
    values = torch.ones(numel)
    assert len(one_bit().encode(values)) == 4 * chunks + -(-numel // 8)
    assert len(two_bit().encode(values)) == 8 * chunks + -(-numel // 4)
    assert len(int4().encode(values)) == 4 * blocks + -(-numel // 2)


@pytest.mark.parametrize(("codec", "bits"), [(one_bit(), 1.01), (two_bit(), 2.02), (int4(), 4.26)])
def test_bits_a_value(codec: LevelCodec, bits: float) -> None:
    assert 8 * codec.size_bytes(10**8) / 10**8 < bits


def test_one_bit_is_signs_and_their_mean_magnitude() -> None:
    payload = one_bit(8).encode(torch.tensor([1.0, -2, 3, -4, 5, -6, 7, 4, -0.5]))
    assert struct.unpack("<2f", payload[:8]) == (4.0, 0.5)
    assert payload[8:] == bytes([0b11010101, 0b0])


def test_two_bits_are_two_magnitudes_with_signs() -> None:
    payload = two_bit(8).encode(torch.tensor([1.0, -1, 8, -8, 1, 1, -8, -1]))
    assert struct.unpack("<2f", payload[:8]) == pytest.approx((1.0, 8.0), rel=1e-6)
    assert payload[8:] == bytes([0b00_11_01_10, 0b01_00_10_10])


def test_int4_keeps_zero_and_the_extreme() -> None:
    values = torch.tensor([0.0, -16.0, 2.0, 15.0])
    payload = int4(8).encode(values)
    assert struct.unpack("<f", payload[:4]) == (2.0,) and payload[4:] == bytes([0x08, 0xF9])
    assert decoded(int4(8), values).tolist() == [0.0, -16.0, 2.0, 14.0]
    assert decoded(int4(8), -values).tolist() == [0.0, 16.0, -2.0, -14.0]


def test_how_near_they_come() -> None:
    """Against the best there is for whole distributions (Lloyd and Max): 0.3634, 0.1175, Laplace 0.5, 0.1762."""
    assert lost(one_bit(), NORMAL) < 0.365 and lost(one_bit(), LAPLACE) < 0.51
    assert lost(two_bit(), NORMAL) < 0.1185 and lost(two_bit(), LAPLACE) < 0.178
    assert lost(int4(), NORMAL) < 0.0115


def test_a_chunk_has_its_own_codebook() -> None:
    mixed = torch.cat([NORMAL[:4096] * 1e-6, NORMAL[4096:8192] * 1e3])
    assert lost(two_bit(), mixed[:4096]) == pytest.approx(lost(two_bit(), NORMAL[:4096]), rel=1e-3)
    assert torch.equal(decoded(two_bit(), mixed)[:4096], decoded(two_bit(), mixed[:4096]))


@pytest.mark.parametrize("codec", [one_bit(), two_bit(), int4()])
@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1e-20, 1e20, 1e33])
def test_any_scale_is_encoded(codec: LevelCodec, scale: float) -> None:
    values = NORMAL[:5000] * scale
    assert bool(torch.isfinite(decoded(codec, values)).all())
    if scale > 1e-30:
        assert lost(codec, values.double()) == pytest.approx(lost(codec, NORMAL[:5000]), rel=0.01)


@pytest.mark.parametrize("codec", [one_bit(), two_bit(), int4()])
def test_zeros_stay_zeros(codec: LevelCodec) -> None:
    for zero in (0.0, -0.0):
        assert torch.count_nonzero(decoded(codec, torch.full((5000,), zero))) == 0


def test_a_sum_beyond_float32_is_refused() -> None:
    with pytest.raises(ShoalError, match=r"SH-CODEC-01.*too large"):
        one_bit().encode(torch.full((4096,), 3e38))


@pytest.mark.parametrize("make", [one_bit, two_bit, int4])
@pytest.mark.parametrize("block", [0, -8, 4, 12, 2 * CHUNK])
def test_wrong_blocks_are_refused(make: type[LevelCodec], block: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        make(block)  # type: ignore[arg-type,call-arg]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_codebook_that_is_not_finite_is_refused(number: float) -> None:
    for codec in (one_bit(), two_bit(), int4()):
        sound = codec.encode(torch.ones(8))
        assert codec.open(memoryview(sound), 8) is not None
        assert codec.open(memoryview(struct.pack("<f", number) + sound[4:]), 8) is None


def test_a_step_whose_eightfold_is_infinite_is_refused() -> None:
    payload = struct.pack("<f", 3e38) + bytes(4)
    assert int4().open(memoryview(payload), 8) is None


@pytest.mark.parametrize("codec", [one_bit(), two_bit(), int4()])
def test_unused_bits_are_zero(codec: LevelCodec) -> None:
    payload = bytearray(codec.encode(-torch.ones(9)))
    assert codec.open(memoryview(payload), 9) is not None
    payload[-1] |= 0x80
    assert codec.open(memoryview(payload), 9) is None
