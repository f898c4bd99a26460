"""What each dense codec's bytes mean, in numpy, all at once: written from the format, not from the code."""

import math
import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shoal.codec.gaps import unpack_positions

Vector = npt.NDArray[np.float32]


def _floats(dtype: str) -> Callable[[bytes, int, np.float32], Vector]:
    return lambda payload, numel, by: np.frombuffer(payload, dtype).astype(np.float32) * by


def _bf16(payload: bytes, numel: int, by: np.float32) -> Vector:
    return (np.frombuffer(payload, "<u2").astype(np.uint32) << 16).view(np.float32) * by


def int8(payload: bytes, numel: int, by: np.float32) -> Vector:
    scales = np.frombuffer(payload, "<f4", count=-(-numel // 256)) * by
    codes = np.frombuffer(payload, np.int8, offset=4 * len(scales)).astype(np.float32)
    return codes * np.repeat(scales, 256)[:numel]


def _codes(payload: bytes, numel: int, bits: int) -> npt.NDArray[np.int64]:
    every = np.unpackbits(np.frombuffer(payload, np.uint8), bitorder="little").reshape(-1, bits)
    return (every.astype(np.int64) << np.arange(bits)).sum(axis=1)[:numel]


def _int4(payload: bytes, numel: int, by: np.float32) -> Vector:
    steps = np.frombuffer(payload, "<f4", count=-(-numel // 128)) * by
    codes = _codes(payload[4 * len(steps) :], numel, 4)
    return (codes - 8).astype(np.float32) * np.repeat(steps, 128)[:numel]


def _two_bit(payload: bytes, numel: int, by: np.float32) -> Vector:
    books = np.frombuffer(payload, "<f4", count=2 * -(-numel // 4096)).reshape(-1, 2)
    small, large = books.T
    levels = np.stack([-large, -small, small, large], axis=1) * by
    return levels[np.arange(numel) // 4096, _codes(payload[books.nbytes :], numel, 2)]


def _one_bit(payload: bytes, numel: int, by: np.float32) -> Vector:
    means = np.frombuffer(payload, "<f4", count=-(-numel // 4096)) * by
    signs = np.where(_codes(payload[means.nbytes :], numel, 1) == 1, np.float32(1), np.float32(-1))
    return signs * np.repeat(means, 4096)[:numel]


def _powersgd(payload: bytes, numel: int, by: np.float32) -> Vector:
    columns = min(1024, numel)
    rows = -(-numel // columns)
    rank = min(4, rows, columns)
    scales = np.frombuffer(payload, "<f4", count=rank)
    factors = np.frombuffer(payload, "<f2", offset=4 * rank).astype(np.float32).reshape(-1, rank)
    left, right = factors[:rows] * scales * by, factors[rows:]
    total = np.outer(left[:, 0], right[:, 0])
    for place in range(1, rank):
        total = total + np.outer(left[:, place], right[:, place])
    return total.reshape(-1)[:numel]


def _kept(payload: bytes, numel: int, chunk: int) -> tuple[npt.NDArray[np.int64], Vector]:
    claimed, kept = struct.unpack("<QQ", payload[:16])
    assert claimed == numel
    end = 16 + kept + 4 * -(-kept // 256)
    positions = unpack_positions(memoryview(payload[end:]), kept, -(-numel // chunk) * chunk)
    assert positions is not None
    return positions, int8(payload[16:end], kept, np.float32(1))


def _chain(payload: bytes, numel: int, by: np.float32) -> Vector:
    positions, values = _kept(payload, numel, 4096)
    out = np.full(numel, -0.0, np.float32)
    out[positions] = values * by
    return out


def _dct(payload: bytes, numel: int, by: np.float32) -> Vector:
    positions, numbers = _kept(payload, numel, 64)
    out = np.zeros((-(-numel // 64), 64), np.float32)
    touched = np.zeros(len(out), np.int64)
    for position, number in zip(positions, numbers * by, strict=True):
        chunk, row = divmod(int(position), 64)
        term = number * cosine(row)
        out[chunk] = term if touched[chunk] == 0 else out[chunk] + term
        touched[chunk] += 1
    return out.reshape(-1)[:numel]


def cosine(row: int) -> Vector:
    """A row of the orthonormal DCT-II basis of length 64, rounded to 22 bits after the point."""
    scale = math.sqrt((2 if row else 1) / 64)
    exact = [scale * math.cos(math.pi * (2 * place + 1) * row / 128) for place in range(64)]
    return np.array([math.floor(value * 2**22 + 0.5) / 2**22 for value in exact], np.float32)


MEANINGS: dict[str, Callable[[bytes, int, np.float32], Vector]] = {
    "none": _floats("<f4"),
    "fp16": _floats("<f2"),
    "bf16": _bf16,
    "int8": int8,
    "int4": _int4,
    "two-bit": _two_bit,
    "one-bit": _one_bit,
    "powersgd": _powersgd,
    "chain": _chain,
    "dct": _dct,
}
