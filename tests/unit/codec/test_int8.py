import struct

import pytest
import torch

from shoal.base.errors import ShoalError
from shoal.codec.base import CHUNK
from shoal.codec.feedback import decode_all
from shoal.codec.int8 import Int8Codec


def test_a_block_has_one_scale() -> None:
    payload = Int8Codec(block=4).encode(torch.tensor([127.0, -64, 1, 0, 0.5, -1.27]))
    scales, codes = struct.unpack("<2f", payload[:8]), struct.unpack("6b", payload[8:])
    assert scales[0] == 1.0 and codes[:4] == (127, -64, 1, 0)
    assert scales[1] == pytest.approx(0.01) and codes[4:] == (50, -127)


@pytest.mark.parametrize("numel", [1, 255, 256, 257, 1000, CHUNK, CHUNK + 1])
def test_size(numel: int) -> None:
    payload = Int8Codec().encode(torch.ones(numel))
    assert len(payload) == numel + 4 * -(-numel // 256)
    assert torch.equal(decode_all(Int8Codec(), payload, numel), torch.ones(numel))


@pytest.mark.parametrize("block", [0, -1, 3, 2 * CHUNK, 257])
def test_blocks_divide_a_chunk(block: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Int8Codec(block)


def test_zeros_stay_zeros() -> None:
    assert torch.equal(decode_all(Int8Codec(), Int8Codec().encode(torch.zeros(300)), 300), torch.zeros(300))


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 3e38, -3e38])
def test_a_scale_that_could_give_infinity_is_refused(scale: float) -> None:
    payload = struct.pack("<f", scale) + b"\x80\x7f"
    assert Int8Codec().open(memoryview(payload), 2) is None


def test_the_code_that_encoding_never_writes_decodes_finite() -> None:
    scale = struct.unpack("<f", struct.pack("<f", 3.4028235e38 / 128))[0]
    source = Int8Codec().open(memoryview(struct.pack("<f", scale) + b"\x80"), 1)
    assert source is not None
    out = torch.empty(1)
    source.decode(0, 1, 1.0, out)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("value", [3.4028234e38, -3.4e38, 3.38e38])
def test_the_largest_floats_are_encoded_or_refused_but_never_void(value: float) -> None:
    codec = Int8Codec()
    try:
        payload = codec.encode(torch.tensor([value]))
    except ShoalError as error:
        assert error.code == "SH-CODEC-01"
    else:
        assert codec.open(memoryview(payload), 1) is not None
