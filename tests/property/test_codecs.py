from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.base.errors import ShoalError
from shoal.codec import CHUNK, CODECS, Codec
from shoal.codec.feedback import decode_all, encode_with_feedback
from shoal.codec.int8 import Int8Codec

from .meanings import MEANINGS
from .modest import many, modest

KINDS = sorted(CODECS)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SMALL = st.floats(-6e4, 6e4, width=32)
TINY_SLACK = 2.0**-140
"""Below this, scales are subnormal and lose their own digits."""


def vectors(elements: st.SearchStrategy[float], max_size: int = 700) -> st.SearchStrategy[torch.Tensor]:
    arrays = hnp.arrays(np.float32, st.integers(1, max_size), elements=elements)
    return arrays.map(torch.from_numpy)


def powers(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(least, most).map(lambda power: 1 << power)


DENSITIES = st.floats(0.001, 0.25)
PARAMETERS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "int8": {"block": powers(0, 15)},
    "int4": {"block": powers(3, 15)},
    "two-bit": {"chunk": powers(3, 15)},
    "one-bit": {"chunk": powers(3, 15)},
    "powersgd": {"rank": st.integers(1, 5), "columns": st.integers(1, 2000)},
    "dct": {
        "chunk": powers(3, 8),
        "density": DENSITIES,
        "then": st.sampled_from(["none", "int8", "two-bit"]),
    },
    "chain": {"chunk": powers(0, 15), "density": DENSITIES, "then": st.sampled_from(["bf16", "one-bit"])},
}
"""What is varied of a codec's parameters; a codec that is not here has its defaults."""


def codecs() -> st.SearchStrategy[Codec]:
    """Every registered codec."""
    return st.sampled_from(KINDS).flatmap(lambda kind: st.builds(CODECS[kind], **PARAMETERS.get(kind, {})))


def opens(codec: Codec, payload: bytes | memoryview, numel: int) -> bool:
    """Whether hostile bytes are taken; if they are, every value must be finite, however it is asked for."""
    source = codec.open(memoryview(payload), numel)
    if source is None:
        return False
    out, sent = torch.full((numel,), float("nan")), torch.full((numel,), float("nan"))
    total = torch.ones(numel)
    for start in range(0, numel, CHUNK):
        stop = min(start + CHUNK, numel)
        source.decode(start, stop, 1.0, out[start:stop])
        source.sent(start, stop, sent[start:stop])
        source.accumulate(start, stop, 1.0, total[start:stop], torch.empty(stop - start))
    assert bool(torch.isfinite(out).all()) and set(sent.tolist()) <= {0.0, 1.0}
    assert torch.equal(total, torch.ones(numel) + out)
    return True


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
@given(codecs(), vectors(FLOATS))
def test_every_finite_tensor_is_refused_or_opens(codec: Codec, values: torch.Tensor) -> None:
    try:
        payload = codec.encode(values)
    except ShoalError as error:
        assert error.code == "SH-CODEC-01"
    else:
        assert opens(codec, payload, values.numel())


@modest
@given(codecs(), vectors(SMALL))
def test_sizes_are_as_stated(codec: Codec, values: torch.Tensor) -> None:
    size_bytes: Callable[[int], int] | None = getattr(codec, "size_bytes", None)
    if size_bytes is not None:
        assert len(codec.encode(values)) == size_bytes(values.numel())


@many
@given(codecs(), st.binary(max_size=600), st.integers(0, 600))
def test_arbitrary_bytes_never_raise_and_never_give_what_is_not_finite(
    codec: Codec, payload: bytes, numel: int
) -> None:
    opens(codec, payload, numel)


@pytest.mark.parametrize("kind", KINDS)
def test_no_bytes_hold_anything_for_no_values(kind: str) -> None:
    taken = [size for size in range(64) if opens(CODECS[kind](), bytes(size), 0)]
    assert taken in ([], [0], [17]), "nothing, or the note that there is nothing"


@modest
@given(codecs(), st.data())
def test_bytes_of_the_right_size_never_raise(codec: Codec, data: st.DataObject) -> None:
    numel = data.draw(st.integers(1, 300))
    size = len(codec.encode(torch.zeros(numel)))
    opens(codec, data.draw(st.binary(min_size=size, max_size=size)), numel)


FOUR_BYTES = st.sampled_from(
    [b"\x00\x00\xc0\x7f", b"\x00\x00\x80\xff", b"\xff\xff\x7f\x7f", b"\xff" * 4, bytes(4)]
)
"""NaN, minus infinity, the largest float, all ones, zero."""


@many
@given(codecs(), vectors(SMALL, 300), st.data())
def test_sound_bytes_with_a_few_changed_never_raise(
    codec: Codec, values: torch.Tensor, data: st.DataObject
) -> None:
    payload = bytearray(codec.encode(values))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload)))
        change = data.draw(st.one_of(FOUR_BYTES, st.binary(max_size=8)))
        payload[at : at + data.draw(st.sampled_from([len(change), 0, 9]))] = change
    opens(codec, bytes(payload), values.numel())


@modest
@given(codecs(), vectors(SMALL), st.integers(-5, 5))
def test_a_wrong_size_is_refused(codec: Codec, values: torch.Tensor, more: int) -> None:
    payload = codec.encode(values)
    if more:
        numel, size_bytes = max(values.numel() + more, 1), getattr(codec, "size_bytes", None)
        # Packed bits of one value more or less may take as many bytes: then the size tells nothing.
        if numel != values.numel() and (size_bytes is None or size_bytes(numel) != len(payload)):
            assert codec.open(memoryview(payload), numel) is None
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


@pytest.mark.parametrize("kind", MEANINGS)
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
    expected = MEANINGS[kind](payload, numel, np.float32(factor))
    if kind == "dct":  # what is not kept is added as nothing, which turns -0.0 to 0.0
        out, expected = out + 0.0, expected + np.float32(0)
    assert out.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_do_not_depend_on_threads(kind: str) -> None:
    values = torch.randn(5 * CHUNK + 77, generator=torch.Generator().manual_seed(5))
    before, encoded = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            encoded.add(CODECS[kind]().encode(values, 3))
    finally:
        torch.set_num_threads(before)
    assert len(encoded) == 1


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
        size_of = torch.maximum(wanted.abs(), decoded.abs()).double()
        assert bool((error <= size_of * 2.0**-23 + 1e-37).all())
