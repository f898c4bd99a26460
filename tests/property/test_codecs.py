import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.base.errors import ShoalError
from shoal.codec import CHUNK, CODECS, Codec
from shoal.codec.feedback import decode_all, encode_with_feedback
from shoal.codec.int8 import Int8Codec

from .modest import many, modest

KINDS = sorted(CODECS)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SMALL = st.floats(-6e4, 6e4, width=32)
TINY_SLACK = 2.0**-140
"""Below this, scales are subnormal and lose their own digits."""


def vectors(elements: st.SearchStrategy[float], max_size: int = 700) -> st.SearchStrategy[torch.Tensor]:
    arrays = hnp.arrays(np.float32, st.integers(1, max_size), elements=elements)
    return arrays.map(torch.from_numpy)


def codecs() -> st.SearchStrategy[Codec]:
    blocks = st.integers(0, 15).map(lambda power: Int8Codec(1 << power))
    return st.one_of(st.sampled_from(["none", "fp16"]).map(lambda kind: CODECS[kind]()), blocks)


@modest
@given(vectors(FLOATS))
def test_none_gives_back_the_bits(values: torch.Tensor) -> None:
    payload = CODECS["none"]().encode(values)
    assert payload == values.numpy().tobytes()
    assert decode_all(CODECS["none"](), payload, values.numel()).numpy().tobytes() == payload


@modest
@given(vectors(SMALL))
def test_fp16_is_as_near_as_half_precision_can_be(values: torch.Tensor) -> None:
    decoded = decode_all(CODECS["fp16"](), CODECS["fp16"]().encode(values), values.numel())
    bound = values.abs().double() * 2.0**-11 + 2.0**-25
    assert bool(((decoded.double() - values.double()).abs() <= bound).all())


@modest
@given(vectors(st.floats(-(2.0**120), 2.0**120, width=32)), st.integers(0, 10))
def test_int8_is_off_by_half_a_step_of_its_block(values: torch.Tensor, power: int) -> None:
    block = 1 << power
    decoded = decode_all(Int8Codec(block), Int8Codec(block).encode(values), values.numel())
    for start in range(0, values.numel(), block):
        part, near = values[start : start + block].double(), decoded[start : start + block].double()
        step = float(part.abs().max()) / 127
        assert float((near - part).abs().max()) <= step * 0.5001 + 128 * TINY_SLACK


@modest
@given(st.sampled_from(KINDS), vectors(FLOATS))
def test_every_finite_tensor_is_refused_or_opens(kind: str, values: torch.Tensor) -> None:
    codec = CODECS[kind]()
    try:
        payload = codec.encode(values)
    except ShoalError as error:
        assert error.code == "SH-CODEC-01" and kind != "none"
        return
    source = codec.open(memoryview(payload), values.numel())
    assert source is not None
    out = torch.empty(values.numel())
    source.decode(0, values.numel(), 1.0, out)
    assert bool(torch.isfinite(out).all())


@many
@given(codecs(), st.binary(max_size=600), st.integers(1, 600))
def test_arbitrary_bytes_never_raise_and_never_give_what_is_not_finite(
    codec: Codec, payload: bytes, numel: int
) -> None:
    source = codec.open(memoryview(payload), numel)
    if source is not None:
        out = torch.full((numel,), float("nan"))
        source.decode(0, numel, 1.0, out)
        assert bool(torch.isfinite(out).all())


@modest
@given(codecs(), st.data())
def test_bytes_of_the_right_size_never_raise(codec: Codec, data: st.DataObject) -> None:
    numel = data.draw(st.integers(1, 300))
    size = len(codec.encode(torch.zeros(numel)))
    payload = data.draw(st.binary(min_size=size, max_size=size))
    source = codec.open(memoryview(payload), numel)
    if source is not None:
        out = torch.full((numel,), float("nan"))
        source.decode(0, numel, 1.0, out)
        assert bool(torch.isfinite(out).all())


@modest
@given(codecs(), vectors(SMALL), st.integers(-5, 5))
def test_a_wrong_size_is_refused(codec: Codec, values: torch.Tensor, more: int) -> None:
    payload = codec.encode(values)
    assert (codec.open(memoryview(payload), values.numel() + more) is not None) == (more == 0) or more < 0
    if more:
        resized = payload[:more] if more < 0 else payload + bytes(more)
        assert codec.open(memoryview(resized), values.numel()) is None


@modest
@given(codecs(), vectors(SMALL), st.binary(max_size=40), st.binary(max_size=40))
def test_decoding_reads_only_its_own_bytes(
    codec: Codec, values: torch.Tensor, before: bytes, after: bytes
) -> None:
    payload = codec.encode(values)
    inside = memoryview(before + payload + after)[len(before) : len(before) + len(payload)]
    source = codec.open(inside, values.numel())
    assert source is not None
    out = torch.empty(values.numel())
    source.decode(0, values.numel(), 1.0, out)
    assert torch.equal(out, decode_all(codec, payload, values.numel()))


def _by_hand(kind: str, payload: bytes, numel: int, factor: float) -> npt.NDArray[np.float32]:
    """What the bytes mean, in numpy, all at once."""
    by = np.float32(factor)
    if kind == "int8":
        scales = np.frombuffer(payload, "<f4", count=-(-numel // 256)) * by
        codes = np.frombuffer(payload, np.int8, offset=4 * len(scales)).astype(np.float32)
        return codes * np.repeat(scales, 256)[:numel]
    return np.frombuffer(payload, "<f4" if kind == "none" else "<f2").astype(np.float32) * by


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numel", [1, 255, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 77])
@pytest.mark.parametrize("factor", [1.0, 0.3333333432674408])
def test_decoding_chunk_by_chunk_is_what_the_bytes_mean(kind: str, numel: int, factor: float) -> None:
    codec = CODECS[kind]()
    payload = codec.encode(torch.randn(numel, generator=torch.Generator().manual_seed(numel)))
    source = codec.open(memoryview(payload), numel)
    assert source is not None
    out = torch.full((numel,), float("nan"))
    for start in reversed(range(0, numel, CHUNK)):
        stop = min(start + CHUNK, numel)
        source.decode(start, stop, factor, out[start:stop])
    assert out.numpy().tobytes() == _by_hand(kind, payload, numel, factor).tobytes()


@modest
@given(codecs(), st.lists(vectors(st.floats(-1e3, 1e3, width=32), 64), min_size=1, max_size=6))
def test_error_feedback_loses_nothing(codec: Codec, updates: list[torch.Tensor]) -> None:
    """Decoded + new residual = update + old residual, up to one rounding each time."""
    size = min(len(update) for update in updates)
    residual = torch.zeros(size)
    for update in updates:
        wanted = update[:size] + residual
        payload, residual = encode_with_feedback(codec, update[:size], residual)
        decoded = decode_all(codec, payload, size)
        error = (decoded.double() + residual.double() - wanted.double()).abs()
        assert bool((error <= wanted.abs().double() * 2.0**-23 + 1e-37).all())
