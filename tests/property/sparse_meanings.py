"""What each sparse codec's bytes mean with its defaults, one value at a time: written from the format, not the code."""

import struct
import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


def _bf16(data: bytes) -> Vector:
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


def _positions(data: bytes, count: int) -> list[int]:
    form, rest = data[0], data[1:]
    if form == 3:
        bits = "".join(f"{byte:08b}" for byte in zlib.decompress(rest, -15))
        return [place for place, bit in enumerate(bits) if bit == "1"]
    low, steps = rest[: form * count], zlib.decompress(rest[form * count :], -15)
    found, at, high = [], -1, 0
    for step in steps:
        high += step
        if step < 255:
            number = len(found)
            at += (high << 8 * form) + int.from_bytes(low[form * number : form * (number + 1)], "little") + 1
            found.append(at)
            high = 0
    return found


def _bit(data: bytes, number: int) -> int:
    return data[number // 8] >> number % 8 & 1


def _coded(payload: bytes, numel: int, by: np.float32, steps: int) -> Vector:
    claimed, kept = struct.unpack("<QQ", payload[:16])
    assert claimed == numel
    chunks, plane = -(-numel // 4096), -(-kept // 8)
    books = _bf16(payload[16 : 16 + 2 * steps * chunks]) * by
    planes = [payload[16 + 2 * steps * chunks + plane * i :][:plane] for i in range(steps)]
    out = np.full(numel, -0.0, np.float32)
    for number, position in enumerate(_positions(payload[16 + steps * (2 * chunks + plane) :], kept)):
        upper = _bit(planes[0], number) if steps == 2 else 0
        magnitude = books[steps * (position // 4096) + upper]
        out[position] = -magnitude if _bit(planes[-1], number) else magnitude
    return out


def _top_k(payload: bytes, numel: int, by: np.float32) -> Vector:
    claimed, kept = struct.unpack("<QQ", payload[:16])
    assert claimed == numel
    out = np.full(numel, -0.0, np.float32)
    out[_positions(payload[16 + 4 * kept :], kept)] = np.frombuffer(payload[16 : 16 + 4 * kept], "<f4") * by
    return out


def _random_k(payload: bytes, numel: int, by: np.float32) -> Vector:
    seed, claimed = struct.unpack("<QQ", payload[:16])
    values = _bf16(payload[16:]) * by
    assert claimed == numel
    drawn = np.random.Philox(key=[seed, numel]).random_raw(len(values))
    out = np.full(numel, -0.0, np.float32)
    for number, value in enumerate(values):
        first, end = (place * numel // len(values) for place in (number, number + 1))
        out[first + int(drawn[number]) % (end - first)] = value
    return out


SPARSE_MEANINGS: dict[str, Callable[[bytes, int, np.float32], Vector]] = {
    "top-k": _top_k,
    "chunked-top-k": lambda payload, numel, by: _coded(payload, numel, by, 2),
    "ternary": lambda payload, numel, by: _coded(payload, numel, by, 1),
    "random-k": _random_k,
}
