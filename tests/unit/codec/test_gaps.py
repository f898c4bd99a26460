import math
import tracemalloc
import zlib

import numpy as np
import pytest

from shoal.codec.gaps import Positions, pack_positions, unpack_positions

NUMEL = 1 << 20


def drawn(density: float, numel: int = NUMEL, seed: int = 1) -> Positions:
    return np.flatnonzero(np.random.default_rng(seed).random(numel) < density)


def entropy_bytes(count: int, numel: int) -> float:
    share = count / numel
    return -numel * (share * math.log2(share) + (1 - share) * math.log2(1 - share)) / 8


def raw_deflate(data: bytes) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return coder.compress(data) + coder.flush()


@pytest.mark.parametrize(
    "one_in", [2, 2.63, 3, 4, 5, 8, 10, 16, 32, 64, 128, 256, 400, 512, 1024, 2048, 4096]
)
def test_positions_take_their_entropy(one_in: float) -> None:
    positions = drawn(1 / one_in)
    assert len(pack_positions(positions, NUMEL)) < 1.02 * entropy_bytes(len(positions), NUMEL) + 32


@pytest.mark.parametrize("one_in", [1, 1.01, 2, 4, 5, 10, 255, 256, 399, 401, 4096, 100_000, 200_000])
def test_positions_come_back(one_in: float) -> None:
    positions = drawn(1 / one_in)
    packed = pack_positions(positions, NUMEL)
    found = unpack_positions(memoryview(packed), len(positions), NUMEL)
    assert found is not None and np.array_equal(found, positions) and found.dtype == np.int64


@pytest.mark.parametrize(
    "positions",
    [[], [0], [NUMEL - 1], [0, NUMEL - 1], [254, 509], [255, 511], [254, 255, 256, 511, 767, 1023], [510]],
)
def test_the_edges_of_a_byte(positions: list[int]) -> None:
    packed = pack_positions(np.array(positions, np.int64), NUMEL)
    found = unpack_positions(memoryview(packed), len(positions), NUMEL)
    assert found is not None and found.tolist() == positions


@pytest.mark.parametrize("density", [0.5, 0.1, 1 / 1000])
def test_another_count_or_a_smaller_set_is_refused(density: float) -> None:
    positions = drawn(density, 10_000)
    packed = memoryview(pack_positions(positions, 10_000))
    assert unpack_positions(packed, len(positions) - 1, 10_000) is None
    assert unpack_positions(packed, len(positions) + 1, 10_000) is None
    assert unpack_positions(packed, len(positions), int(positions[-1])) is None
    assert unpack_positions(packed, -1, 10_000) is None
    for size in range(len(packed)):
        assert unpack_positions(packed[:size], len(positions), 10_000) is None
    assert unpack_positions(memoryview(bytes(packed) + b"\0"), len(positions), 10_000) is None


def test_a_bomb_is_refused_before_it_unfolds() -> None:
    bomb = raw_deflate(bytes(50_000_000))
    tracemalloc.start()
    try:
        for form in range(5):
            assert unpack_positions(memoryview(bytes([form]) + bomb), 5, 1000) is None
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("steps", "count", "found"),
    [
        (b"\x03\x00\x01", 3, [3, 4, 6]),
        (b"\xff\x03\x00", 2, [258, 259]),
        (b"\xff\xff", 2, None),
        (b"\xff\xff", 0, None),
        (b"\x03\xff", 1, None),
        (b"\x03\xff", 2, None),
        (b"\xff\xff\xff\xe9", 1, [998]),
        (b"\xff\xff\xff\xeb", 1, None),
    ],
)
def test_steps(steps: bytes, count: int, found: list[int] | None) -> None:
    got = unpack_positions(memoryview(b"\0" + raw_deflate(steps)), count, 999)
    assert (None if got is None else got.tolist()) == found


def test_a_bitmap_has_no_bits_beyond_the_end() -> None:
    assert unpack_positions(memoryview(b"\3" + raw_deflate(b"\x80\x01")), 2, 16) is not None
    assert unpack_positions(memoryview(b"\3" + raw_deflate(b"\x80\x01")), 2, 15) is None
    assert unpack_positions(memoryview(b"\3" + raw_deflate(b"\x80")), 1, 16) is None
