"""The bytes of one shard: a small header, then plain arrays.

In flow named arrays; out flows one blob, and back. Layout: 4 magic bytes, the header's length (u32, little
endian), the header (MessagePack: name, dtype and shape of each array), zeros up to a multiple of 64, then
each array's little-endian bytes, each padded to 64. Invariant: one set of arrays has one encoding, and bytes
that are not exactly such an encoding are refused before any array is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.base.disk import Buffer
from shoal.base.errors import ShoalError

MAGIC = b"SHD1"
ALIGN = 64
MAX_HEADER_BYTES = 4096

Array = npt.NDArray[Any]


class _ArraySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    dtype: Literal["uint8", "uint16", "uint32", "int64", "float32"]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    arrays: tuple[_ArraySpec, ...]


def encode_arrays(arrays: Mapping[str, Array]) -> bytes:
    """One blob that holds these arrays, in name order."""
    named = sorted(arrays.items())
    specs = tuple(
        msgspec.convert({"name": name, "dtype": array.dtype.name, "shape": array.shape}, _ArraySpec)
        for name, array in named
    )
    header = msgspec.msgpack.encode(_Header(specs))
    parts = [_padded(MAGIC + len(header).to_bytes(4, "little") + header)]
    for _, array in named:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        parts.append(_padded(np.ascontiguousarray(little).tobytes()))
    return b"".join(parts)


def decode_arrays(data: Buffer) -> dict[str, Array]:
    """The arrays of a blob, as read-only views of `data`. Raises SH-DATA-03 where it is not such a blob."""
    view = memoryview(data)
    header, offset = _read_header(view)
    arrays: dict[str, Array] = {}
    for spec in header.arrays:
        if min(spec.shape, default=0) < 0 or offset + spec.size_bytes > len(view):
            raise _malformed(f"array {spec.name!r} of shape {spec.shape} does not fit in {len(view)} bytes")
        dtype = np.dtype(spec.dtype).newbyteorder("<")
        flat = np.frombuffer(view, dtype=dtype, count=math.prod(spec.shape), offset=offset)
        flat.flags.writeable = False
        arrays[spec.name] = flat.reshape(spec.shape)
        offset += _aligned(spec.size_bytes)
    if offset != len(view):
        raise _malformed(f"{len(view)} bytes where {offset} are announced")
    return arrays


def _read_header(view: memoryview) -> tuple[_Header, int]:
    if len(view) < 8 or bytes(view[:4]) != MAGIC:
        raise _malformed("it does not start as a shard does")
    length = int.from_bytes(view[4:8], "little")
    if length > MAX_HEADER_BYTES:
        raise _malformed(f"a header of {length} bytes")
    try:
        header = msgspec.msgpack.decode(view[8 : 8 + length], type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(str(error)) from error
    return header, _aligned(8 + length)


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _padded(data: bytes) -> bytes:
    return data.ljust(_aligned(len(data)), b"\0")


def _malformed(cause: str) -> ShoalError:
    return ShoalError("SH-DATA-03", f"a data shard is malformed: {cause}", "prepare the data again")
