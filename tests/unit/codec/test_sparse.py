import math
import struct
import zlib

import numpy as np
import pytest
import torch

from shoal.codec import CODECS
from shoal.codec.base import CHUNK
from shoal.codec.feedback import decode_all, encode_with_feedback
from shoal.codec.gaps import pack_positions
from shoal.codec.sparse import SparseCodec

HEADER = 16


def drawn(numel: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed)) * 1e-3


def kept_in(codec: SparseCodec, values: torch.Tensor) -> list[int]:
    return decode_all(codec, codec.encode(values), values.numel()).nonzero().view(-1).tolist()


@pytest.mark.parametrize("parameters", [{"density": 0.0}, {"density": 0.26}, {"density": -0.1}])
def test_densities(parameters: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="density"):
        SparseCodec(**parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [-1, 1, 3, 8, 4097, 1 << 70])
def test_chunks(chunk: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        SparseCodec(chunk=chunk)


def test_other_parameters() -> None:
    with pytest.raises(ValueError, match="1, 2, 16, 32"):
        SparseCodec(bits=8)
    with pytest.raises(ValueError, match="chunk, fragment"):
        SparseCodec(share="all")


@pytest.mark.parametrize("bits", [1, 2, 16, 32])
@pytest.mark.parametrize("share", ["chunk", "fragment"])
@pytest.mark.parametrize("chunk", [0, 16, 1024, 1 << 17])
@pytest.mark.parametrize("numel", [1, 2, 15, 17, 5000, CHUNK, 2 * CHUNK + 77])
def test_exactly_the_density_is_kept(bits: int, share: str, chunk: int, numel: int) -> None:
    codec, values = SparseCodec(0.1, chunk, bits, share), drawn(numel)
    width = chunk if chunk and share == "chunk" else numel
    rows = [min(width, numel - start) for start in range(0, numel, width)]
    assert len(kept_in(codec, values)) == sum(max(1, round(0.1 * row)) for row in rows)
    assert codec.most_kept(numel) == sum(max(1, round(0.1 * row)) for row in rows)


def test_top_k_keeps_the_largest_as_they_are() -> None:
    values = torch.tensor([0.5, -3.0, 2.0, 0.0, -0.25, 2.5, 1.0, -1.0, 0.125, 0.0])
    decoded = decode_all(SparseCodec(0.2), SparseCodec(0.2).encode(values), 10)
    assert decoded.tolist() == [0, -3.0, 0, 0, 0, 2.5, 0, 0, 0, 0]


def test_one_magnitude_for_each_chunk() -> None:
    values = torch.zeros(32)
    values[:4], values[16:20] = torch.tensor([1.0, -3, 2, 0.5]), torch.tensor([10.0, 30, -0.5, 0])
    codec = SparseCodec(2 / 16, 16, 1)
    assert decode_all(codec, codec.encode(values), 32)[[1, 2, 16, 17]].tolist() == [-2.5, 2.5, 20, 20]
    fragment = SparseCodec(4 / 32, 16, 1, "fragment")
    assert kept_in(fragment, values) == [1, 2, 16, 17], "the larger chunk may send more"
    assert kept_in(fragment, torch.cat([values[:16], values[16:] * 0.01])) == [0, 1, 2, 3]


def test_two_magnitudes_for_each_chunk() -> None:
    values = torch.zeros(64)
    values[:6] = torch.tensor([1.0, -1.25, 0.75, 8, -10, 9])
    codec = SparseCodec(9 / 64, 64, 2)
    assert decode_all(codec, codec.encode(values), 64)[:6].tolist() == [1, -1, 1, 9, -9, 9]
    values[:9] = torch.tensor([1.0] * 7 + [3, 10])
    assert decode_all(codec, codec.encode(values), 64)[:9].tolist() == [1.25] * 8 + [10], (
        "3 is above the mean of all, but nearer to the lower one"
    )


@pytest.mark.parametrize("value", [1e-40, 1e-30, 3.4028234e38, -3.4028234e38, 1.0])
@pytest.mark.parametrize("bits", [1, 2, 16, 32])
def test_any_size_of_value_is_near(value: float, bits: int) -> None:
    codec = SparseCodec(0.25, 16, bits)
    decoded = decode_all(codec, codec.encode(torch.full((20,), value)), 20)
    kept = torch.tensor([value] * 4)
    assert torch.allclose(decoded[[0, 1, 2, 3]], kept, rtol=2**-8, atol=1e-40)
    assert torch.allclose(decoded[16:17], kept[:1], rtol=2**-8, atol=1e-40)
    assert torch.count_nonzero(decoded) == 5


@pytest.mark.parametrize("kind", ["top-k", "chunked-top-k", "ternary"])
def test_nothing_but_zeros(kind: str) -> None:
    codec = CODECS[kind]()
    payload = codec.encode(torch.zeros(5000))
    assert torch.count_nonzero(decode_all(codec, payload, 5000)) == 0
    sent = torch.ones(5000)
    source = codec.open(memoryview(payload), 5000)
    assert source is not None
    source.sent(0, 5000, sent)
    assert torch.count_nonzero(sent) == 0


@pytest.mark.parametrize("share", ["chunk", "fragment"])
@pytest.mark.parametrize(("bits", "books"), [(1, 1), (2, 2), (16, 0), (32, 0)])
@pytest.mark.parametrize("density", [0.25, 0.1, 0.05, 1 / 64])
def test_size(share: str, bits: int, books: int, density: float) -> None:
    numel, chunk = 1 << 19, 4096
    codec = SparseCodec(density, chunk, bits, share)
    kept = codec.most_kept(numel)
    size = len(codec.encode(drawn(numel)))
    values = -(-kept // 8) * bits + 2 * books * (numel // chunk)
    entropy = -numel * (density * math.log2(density) + (1 - density) * math.log2(1 - density)) / 8
    assert HEADER + values + 0.99 * entropy < size < HEADER + values + 1.02 * entropy


def test_what_the_defaults_cost() -> None:
    numel = 1 << 20
    bits = {
        kind: 8 * len(CODECS[kind]().encode(drawn(numel))) / numel for kind in ("chunked-top-k", "ternary")
    }
    assert bits["ternary"] < 0.58, "H(0.1) + 0.1 and a little"
    assert bits["chunked-top-k"] < 0.275, "H(1/32) + 2/32, and two magnitudes for each chunk"


@pytest.mark.parametrize("kind", ["top-k", "chunked-top-k", "ternary", "random-k"])
@pytest.mark.parametrize("factor", [1.0, 0.3333333432674408, -2.0])
def test_adding_is_decoding_and_adding(kind: str, factor: float) -> None:
    """To the bit: also where the sum so far is -0.0."""
    numel = 2 * CHUNK + 99
    codec = CODECS[kind]()
    source = codec.open(memoryview(codec.encode(drawn(numel))), numel)
    assert source is not None
    before = drawn(numel, 1)
    before[::3], before[1::3] = -0.0, 0.0
    for start in range(0, numel, CHUNK):
        stop = min(start + CHUNK, numel)
        decoded, added = torch.full((stop - start,), math.nan), before[start:stop].clone()
        source.decode(start, stop, factor, decoded)
        source.accumulate(start, stop, factor, added, torch.full_like(added, math.nan))
        wanted = before[start:stop] + decoded
        assert torch.equal(added.view(torch.int32), wanted.view(torch.int32))


@pytest.mark.parametrize("kind", ["top-k", "chunked-top-k", "ternary", "random-k"])
def test_ranges_of_other_lengths(kind: str) -> None:
    numel = 3 * CHUNK + 1000
    codec = CODECS[kind]()
    payload = codec.encode(drawn(numel))
    source, whole = codec.open(memoryview(payload), numel), decode_all(codec, payload, numel)
    assert source is not None
    for start, stop in (
        *((0, 0), (0, 1), (0, 1000), (0, CHUNK - 1), (CHUNK, CHUNK), (CHUNK, CHUNK + 3)),
        *((0, CHUNK + 1), (0, 3 * CHUNK), (CHUNK, numel), (2 * CHUNK, numel - 1), (0, numel)),
    ):
        out, sent = torch.full((stop - start,), math.nan), torch.full((stop - start,), math.nan)
        source.decode(start, stop, 1.0, out)
        source.sent(start, stop, sent)
        assert torch.equal(out, whole[start:stop])
        assert torch.equal(sent, (whole[start:stop] != 0).float())


@pytest.mark.parametrize("kind", ["top-k", "chunked-top-k", "ternary", "random-k"])
def test_threads_do_not_matter(kind: str) -> None:
    values, before = drawn(1 << 21), torch.get_num_threads()
    payloads = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            payloads.append(CODECS[kind]().encode(values, 3))
    finally:
        torch.set_num_threads(before)
    assert payloads[0] == payloads[1] == payloads[2]


def test_with_feedback_every_value_arrives_in_the_end() -> None:
    codec, update = SparseCodec(0.1, 64, 1, "fragment"), drawn(1000)
    total, residual = torch.zeros(1000), torch.zeros(1000)
    for _ in range(300):
        payload, residual = encode_with_feedback(codec, update, residual)
        total += decode_all(codec, payload, 1000)
    assert torch.allclose(total / 300, update, atol=3e-4)


def ternary_payload(numel: int, kept: int, book: int, positions: list[int]) -> bytes:
    packed = pack_positions(np.array(positions, np.int64), max(numel, 1))
    return struct.pack("<QQHB", numel, kept, book, 0) + packed


def test_hostile_headers() -> None:
    codec = CODECS["ternary"]()
    assert codec.open(memoryview(ternary_payload(20, 2, 0x3F80, [3, 19])), 20) is not None
    assert codec.open(memoryview(ternary_payload(21, 2, 0x3F80, [3, 19])), 20) is None
    assert codec.open(memoryview(ternary_payload(20, 3, 0x3F80, [3, 4, 19])), 20) is None, (
        "more than the density"
    )
    assert codec.open(memoryview(ternary_payload(20, 1, 0x3F80, [3, 19])), 20) is None
    assert codec.open(memoryview(ternary_payload(20, 2**64 - 1, 0x3F80, [3, 19])), 20) is None
    for book in (0x7F80, 0x7FC0, 0x8000, 0xBF80, 0xFFFF):
        assert codec.open(memoryview(ternary_payload(20, 2, book, [3, 19])), 20) is None, "not a magnitude"


@pytest.mark.parametrize("bits", [16, 32])
def test_values_that_are_not_finite_are_refused(bits: int) -> None:
    codec = SparseCodec(0.1, 0, bits)
    for value in (math.nan, math.inf, -math.inf):
        raw = struct.pack("<f", value)[4 - bits // 8 :]
        packed = pack_positions(np.array([3]), 10)
        assert codec.open(memoryview(struct.pack("<QQ", 10, 1) + raw + packed), 10) is None
    good = struct.pack("<f", 1.0)[4 - bits // 8 :]
    assert codec.open(memoryview(struct.pack("<QQ", 10, 1) + good + pack_positions(np.array([3]), 10)), 10)


def test_a_bomb_is_refused() -> None:
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = coder.compress(bytes(50_000_000)) + coder.flush()
    header = struct.pack("<QQHB", 20, 2, 0x3F80, 0)
    assert all(
        CODECS["ternary"]().open(memoryview(header + bytes([form]) + bomb), 20) is None for form in range(5)
    )
