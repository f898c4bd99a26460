"""Chains, and the cosines that one of them chooses from."""

import math
import struct

import pytest
import torch

from shoal.base.errors import ShoalError
from shoal.codec.base import CHUNK
from shoal.codec.chain import ChainCodec, dct
from shoal.codec.cosines import BITS, dct_basis
from shoal.codec.dct import CosineSpace
from shoal.codec.feedback import decode_all, encode_with_feedback

NORMAL = torch.randn(5000, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("length", [8, 64, 256])
def test_the_basis_is_the_cosines_rounded_once(length: int) -> None:
    basis = dct_basis(length)
    for row in (0, 1, length // 2, length - 1):
        scale = math.sqrt((2 if row else 1) / length) * 2**BITS
        exact = [scale * math.cos(math.pi * (2 * n + 1) * row / (2 * length)) for n in range(length)]
        assert basis[row].tolist() == [float(math.floor(value + 0.5)) for value in exact]
    assert torch.equal(basis.float().double(), basis), "exact as float32"


def test_cosines_are_the_transform() -> None:
    found = CosineSpace(64, 64).enter(NORMAL[:640]).view(10, 64)
    exact = NORMAL[:640].double().view(10, 64) @ (dct_basis(64) / 2**BITS).t()
    assert float((found - exact).abs().max()) < 1e-5


def test_a_wave_needs_one_cosine() -> None:
    wave = (dct_basis(64)[5] / 2**BITS).float() * 3
    payload = dct(density=1 / 64, then="none").encode(wave)
    assert struct.unpack("<QQf", payload[:20])[:2] == (64, 1)
    assert torch.allclose(decode_all(dct(density=1 / 64, then="none"), payload, 64), wave, atol=1e-6)


def test_top_k_keeps_the_largest_and_the_next_codec_rounds_them() -> None:
    values = torch.tensor([0.1, -127.0, 3.0, 0.2, 64.0, 0.0, 0.0, -0.3])
    codec = ChainCodec("top-k", "int8", 0.25, 8)
    assert decode_all(codec, codec.encode(values), 8).tolist() == [0, -127, 0, 0, 64, 0, 0, 0]


def test_each_chunk_keeps_its_own() -> None:
    values = torch.cat([torch.full((64,), 100.0), torch.full((64,), 0.01)])
    codec = ChainCodec("top-k", "none", 0.125, 64)
    found = decode_all(codec, codec.encode(values), 128)
    assert [int(torch.count_nonzero(part)) for part in found.split(64)] == [8, 8]


@pytest.mark.parametrize("first", ["top-k", "dct"])
@pytest.mark.parametrize("then", ["none", "fp16", "bf16", "int8", "int4", "two-bit", "one-bit"])
def test_feedback_brings_everything_in_time(first: str, then: str) -> None:
    codec, rounds = ChainCodec(first, then, 0.125, 64), 60
    total, residual = torch.zeros(5000), torch.zeros(5000)
    for _ in range(rounds):
        payload, residual = encode_with_feedback(codec, NORMAL, residual)
        total += decode_all(codec, payload, 5000)
    assert float((total / rounds - NORMAL).norm() / NORMAL.norm()) < 0.15


@pytest.mark.parametrize("codec", [ChainCodec(), dct()])
def test_zeros_keep_nothing(codec: ChainCodec) -> None:
    payload = codec.encode(torch.zeros(CHUNK + 3))
    assert len(payload) < 64 and torch.count_nonzero(decode_all(codec, payload, CHUNK + 3)) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": "int8"},
        {"then": "top-k"},
        {"then": "chain"},
        {"density": 0.0},
        {"density": 0.3},
        {"chunk": 48},
        {"chunk": 2 * CHUNK},
        {"first": "dct"},
        {"first": "dct", "chunk": 4},
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        ChainCodec(**wrong)  # type: ignore[arg-type]


def test_what_the_first_or_the_next_cannot_hold_is_refused() -> None:
    with pytest.raises(ShoalError, match="SH-CODEC-01"):
        ChainCodec(then="fp16").encode(torch.tensor([1e6]))
    with pytest.raises(ShoalError, match=r"SH-CODEC-01.*too large"):
        dct().encode(torch.full((64,), 3e38))


def test_more_in_a_chunk_than_encoding_keeps_is_refused() -> None:
    """Eight from one chunk of cosines, where two of each of four may be kept."""
    crowded = ChainCodec("dct", "none", 0.25, 32).encode(NORMAL[:32])
    assert struct.unpack("<QQ", crowded[:16]) == (32, 8)
    assert ChainCodec("dct", "none", 0.25, 8).open(memoryview(crowded), 32) is None


def test_a_place_behind_the_last_value_is_refused() -> None:
    codec = ChainCodec("top-k", "none", 0.25, 8)
    payload = codec.encode(torch.tensor([0.0, 0, 0, 0, 0, 0, 0, 1.0]))
    assert codec.open(memoryview(payload), 8) is not None
    assert codec.open(memoryview(struct.pack("<Q", 7) + payload[8:]), 7) is None


def test_cosines_that_add_up_to_infinity_are_refused() -> None:
    codec = ChainCodec("dct", "none", 0.25, 32)
    payload = codec.encode(NORMAL[:32])
    huge = struct.pack("<8f", *[3e38] * 8)
    assert codec.open(memoryview(payload), 32) is not None
    assert codec.open(memoryview(payload[:16] + huge + payload[48:]), 32) is None
