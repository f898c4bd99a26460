import pytest
import torch

from shoal.base.errors import ShoalError
from shoal.codec import CODECS
from shoal.codec.base import all_finite
from shoal.codec.feedback import decode_all

NONE, FP16 = CODECS["none"](), CODECS["fp16"]()


def test_none_is_exact() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    payload = NONE.encode(values)
    assert len(payload) == 4000 and torch.equal(decode_all(NONE, payload, 1000), values)


def test_fp16_halves_and_rounds() -> None:
    values = torch.tensor([1.0, 1 / 3, -65504.0, 1e-8])
    payload = FP16.encode(values)
    assert len(payload) == 8
    assert torch.equal(decode_all(FP16, payload, 4), values.half().float())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", sorted(CODECS))
def test_what_is_not_finite_is_not_encoded(kind: str, bad: float) -> None:
    with pytest.raises(ShoalError, match="SH-CODEC-01"):
        CODECS[kind]().encode(torch.tensor([1.0, bad]))


def test_the_largest_of_both_signs_are_finite_and_infinities_of_both_signs_are_not() -> None:
    for dtype in (torch.float32, torch.float16):
        largest, inf = torch.finfo(dtype).max, float("inf")
        assert all_finite(torch.tensor([largest, -largest], dtype=dtype))
        assert not all_finite(torch.tensor([inf, 0.0, -inf], dtype=dtype))
        assert not all_finite(torch.tensor([0.0, float("nan"), inf], dtype=dtype))


@pytest.mark.parametrize("kind", sorted(CODECS))
def test_nothing_is_not_encoded(kind: str) -> None:
    with pytest.raises(ShoalError, match="SH-CODEC-01"):
        CODECS[kind]().encode(torch.empty(0))


def test_fp16_says_what_it_cannot_hold() -> None:
    with pytest.raises(ShoalError, match=r"SH-CODEC-01.*float16"):
        FP16.encode(torch.tensor([70000.0]))


@pytest.mark.parametrize("kind", ["none", "fp16"])
def test_hostile_bytes_are_refused(kind: str) -> None:
    codec, width = CODECS[kind](), 4 if kind == "none" else 2
    assert codec.open(memoryview(bytes(3 * width)), 3) is not None
    for size in (0, 1, 3 * width - 1, 3 * width + 1, 4 * width):
        assert codec.open(memoryview(bytes(size)), 3) is None
    infinity = torch.tensor([0, 0, float("inf")], dtype=torch.float32 if width == 4 else torch.float16)
    assert codec.open(memoryview(infinity.numpy().tobytes()), 3) is None
    assert codec.open(memoryview(b"\xff" * 3 * width), 3) is None, "all ones are NaN"


@pytest.mark.parametrize("kind", sorted(CODECS))
def test_a_payload_may_begin_at_any_address(kind: str) -> None:
    codec, values = CODECS[kind](), torch.linspace(-1, 1, 77)
    payload = codec.encode(values)
    for shift in range(1, 5):
        shifted = memoryview(bytes(shift) + payload)[shift:]
        source = codec.open(shifted, 77)
        assert source is not None
        out = torch.empty(77)
        source.decode(0, 77, 1.0, out)
        assert torch.equal(out, decode_all(codec, payload, 77))


@pytest.mark.parametrize("kind", sorted(CODECS))
def test_encoding_changes_nothing_and_takes_any_shape(kind: str) -> None:
    values = torch.linspace(-1, 1, 24).view(4, 6).t()
    before = values.clone()
    payload = CODECS[kind]().encode(values)
    assert torch.equal(values, before)
    assert payload == CODECS[kind]().encode(values.reshape(-1).double())
