"""Sparse codecs on whatever values and whatever bytes: nothing is lost, and nothing hostile gets in."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.codec import CHUNK, CODECS, Codec
from shoal.codec.feedback import decode_all, encode_with_feedback
from shoal.codec.gaps import pack_positions, unpack_positions
from shoal.codec.random_k import RandomKCodec
from shoal.codec.selection import largest
from shoal.codec.sparse import SHARES, SparseCodec

from .modest import many, modest
from .sparse_meanings import SPARSE_MEANINGS

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
FEW = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 3.4028234663852886e38, 1e-45])
DENSITIES = st.sampled_from([1e-6, 0.01, 1 / 32, 0.1, 0.2, 0.25])


def vectors(elements: st.SearchStrategy[float], max_size: int = 400) -> st.SearchStrategy[torch.Tensor]:
    arrays = hnp.arrays(np.float32, st.integers(1, max_size), elements=elements)
    return arrays.map(torch.from_numpy)


def codecs() -> st.SearchStrategy[Codec]:
    chunks = st.one_of(st.just(0), st.integers(4, 12).map(lambda power: 1 << power))
    bits = st.sampled_from([1, 2, 16, 32])
    sparse = st.builds(SparseCodec, DENSITIES, chunks, bits, st.sampled_from(SHARES))
    return st.one_of(sparse, st.builds(RandomKCodec, DENSITIES, st.sampled_from([16, 32])))


def read(codec: Codec, payload: bytes | memoryview, numel: int) -> torch.Tensor | None:
    """What bytes decode to, once it is checked that it is finite and lies where it is said to be sent."""
    source = codec.open(memoryview(payload), numel)
    if source is None:
        return None
    out, sent = torch.full((numel,), float("nan")), torch.full((numel,), float("nan"))
    source.decode(0, numel, 1.0, out)
    source.sent(0, numel, sent)
    assert bool(torch.isfinite(out).all())
    assert bool(((sent == 1) | ((sent == 0) & (out == 0))).all())
    return out


@many
@given(st.integers(1, 5000), st.data())
def test_positions_come_back(numel: int, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.integers(0, numel - 1), max_size=min(numel, 300)))
    positions = np.unique(np.array(drawn, np.int64))
    packed = pack_positions(positions, numel)
    found = unpack_positions(memoryview(packed), len(positions), numel)
    assert found is not None and np.array_equal(found, positions)


@many
@given(st.binary(max_size=200), st.integers(0, 300), st.integers(1, 3000), st.integers(0, 4))
def test_any_bytes_are_positions_or_refused(data: bytes, count: int, numel: int, form: int) -> None:
    for payload in (data, bytes([form]) + data):
        found = unpack_positions(memoryview(payload), count, numel)
        if found is not None:
            assert len(found) == count
            assert not count or (found[0] >= 0 and found[-1] < numel and bool((np.diff(found) > 0).all()))


@many
@given(st.integers(0, 8), st.integers(1, 6), st.data())
def test_the_largest_of_each_row(power: int, rows: int, data: st.DataObject) -> None:
    width = 1 << power
    values = data.draw(hnp.arrays(np.float32, width * rows, elements=st.one_of(FEW, FLOATS)))
    keep = data.draw(st.integers(1, width))
    wanted = [
        row * width + int(i)
        for row in range(rows)
        for i in sorted(np.argsort(-np.abs(values[row * width : (row + 1) * width]), kind="stable")[:keep])
        if values[row * width + int(i)] != 0
    ]
    positions, kept = largest(torch.from_numpy(values), width, keep)
    assert positions.tolist() == wanted and kept.tobytes() == values[positions].tobytes()


@modest
@given(codecs(), vectors(st.one_of(FEW, FLOATS)), st.integers(0, 2**64 - 1))
def test_every_finite_tensor_opens(codec: Codec, values: torch.Tensor, seed: int) -> None:
    payload = codec.encode(values, seed)
    out = read(codec, payload, values.numel())
    assert out is not None
    assert bool((out.sign() * values.sign() >= 0).all()), "no value changes its sign"
    assert codec.open(memoryview(payload), values.numel() + 1) is None


@modest
@given(vectors(FLOATS), DENSITIES, st.sampled_from(SHARES))
def test_whole_floats_come_back_as_they_were(values: torch.Tensor, density: float, share: str) -> None:
    codec = SparseCodec(density, 16, 32, share)
    out = decode_all(codec, codec.encode(values), values.numel())
    assert torch.equal(out[out != 0], values[out != 0])
    if share == "fragment":
        assert torch.count_nonzero(out) == min(codec.most_kept(len(values)), int(torch.count_nonzero(values)))
        assert (
            out.abs()[out != 0]
            .sort()
            .values.equal(values.abs().sort().values[len(values) - int(torch.count_nonzero(out)) :])
        )


@modest
@given(codecs(), st.lists(vectors(st.floats(-1e3, 1e3, width=32), 64), min_size=1, max_size=6))
def test_error_feedback_loses_nothing(codec: Codec, updates: list[torch.Tensor]) -> None:
    size = min(len(update) for update in updates)
    residual = torch.zeros(size)
    for seed, update in enumerate(updates):
        wanted = update[:size] + residual
        payload, residual = encode_with_feedback(codec, update[:size], residual, seed)
        decoded = decode_all(codec, payload, size).double()
        error = (decoded + residual.double() - wanted.double()).abs()
        rounding = torch.maximum(wanted.abs().double(), decoded.abs()) * 2.0**-23
        assert bool((error <= rounding + 1e-37).all())


@many
@given(codecs(), st.binary(max_size=300), st.integers(1, 600))
def test_arbitrary_bytes(codec: Codec, payload: bytes, numel: int) -> None:
    read(codec, payload, numel)
    read(codec, numel.to_bytes(8, "little") + payload, numel)
    read(codec, payload[:8] + numel.to_bytes(8, "little") + payload[8:], numel)


@many
@given(codecs(), vectors(st.floats(-10, 10, width=32)), st.data())
def test_mutated_bytes(codec: Codec, values: torch.Tensor, data: st.DataObject) -> None:
    payload = bytearray(codec.encode(values))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] ^= data.draw(st.integers(1, 255))
    read(codec, payload, values.numel())


@modest
@given(codecs(), vectors(st.floats(-10, 10, width=32), 100), st.binary(min_size=1, max_size=9))
def test_bytes_cut_off_or_added_are_refused(codec: Codec, values: torch.Tensor, more: bytes) -> None:
    payload = codec.encode(values)
    for size in range(len(payload)):
        assert codec.open(memoryview(payload[:size]), values.numel()) is None
    assert codec.open(memoryview(payload + more), values.numel()) is None
    inside = memoryview(more + payload + more)[len(more) : len(more) + len(payload)]
    out = read(codec, inside, values.numel())
    assert out is not None and torch.equal(out, decode_all(codec, payload, values.numel()))


@pytest.mark.parametrize("kind", SPARSE_MEANINGS)
@pytest.mark.parametrize("numel", [1, 255, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 77])
@pytest.mark.parametrize("factor", [1.0, 0.3333333432674408])
def test_decoding_chunk_by_chunk_is_what_the_bytes_mean(kind: str, numel: int, factor: float) -> None:
    codec = CODECS[kind]()
    payload = codec.encode(torch.randn(numel, generator=torch.Generator().manual_seed(numel)), 5)
    source = codec.open(memoryview(payload), numel)
    assert source is not None
    out = torch.full((numel,), float("nan"))
    for start in reversed(range(0, numel, CHUNK)):
        stop = min(start + CHUNK, numel)
        source.decode(start, stop, factor, out[start:stop])
    assert out.numpy().tobytes() == SPARSE_MEANINGS[kind](payload, numel, np.float32(factor)).tobytes()
