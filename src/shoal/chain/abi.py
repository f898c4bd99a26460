"""Contract ABI: Python values to call data and back.

In flow types as the compiler names them and plain values (int, bool, bytes, str, lists, tuples; addresses are `0x...`
text); out flow bytes. Invariant: a value that does not fit its type raises `AbiError`; decoding reads nothing outside
the bytes it is given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WORD = 32
MAX_ITEMS = 100_000
_NUMBER = re.compile(r"(u?)int(\d+)")
_FIXED = re.compile(r"bytes(\d+)")
_ARRAY = re.compile(r"(.*)\[(\d*)\]")
_ADDRESS = re.compile("0x[0-9a-fA-F]{40}")


class AbiError(ValueError):
    """A value or bytes that do not fit their type."""


@dataclass(frozen=True, slots=True)
class Type:
    """A type's name, and for tuples its parts."""

    name: str
    parts: tuple[Type, ...] = ()

    @property
    def canonical(self) -> str:
        """As in a signature: a tuple by its parts."""
        if self.name.startswith("tuple"):
            return f"({','.join(part.canonical for part in self.parts)})" + self.name.removeprefix("tuple")
        return self.name

    @property
    def element(self) -> tuple[Type, int | None] | None:
        """What an array has, and how many of them if that is fixed."""
        found = _ARRAY.fullmatch(self.name)
        if found is None:
            return None
        return Type(found[1], self.parts), int(found[2]) if found[2] else None

    @property
    def is_dynamic(self) -> bool:
        if (array := self.element) is not None:
            return array[1] is None or array[0].is_dynamic
        return self.name in ("bytes", "string") or any(part.is_dynamic for part in self.parts)

    @property
    def head_bytes(self) -> int:
        if self.is_dynamic:
            return WORD
        if (array := self.element) is not None:
            return array[0].head_bytes * (array[1] or 0)
        return sum(part.head_bytes for part in self.parts) if self.name == "tuple" else WORD


def read_type(item: dict[str, Any]) -> Type:
    """A type from the compiler's JSON."""
    return Type(item["type"], tuple(read_type(part) for part in item.get("components", ())))


def read_types(items: Sequence[dict[str, Any]]) -> tuple[Type, ...]:
    return tuple(read_type(item) for item in items)


# --- encoding --------------------------------------------------------------------------------------------


def encode(types: Sequence[Type], values: Sequence[Any]) -> bytes:
    """The values one after another, heads first."""
    if len(types) != len(values):
        raise AbiError(f"{len(values)} values for {len(types)} types")
    heads: list[bytes | None] = []
    tails: list[bytes] = []
    for kind, value in zip(types, values, strict=True):
        encoded = _encode_one(kind, value)
        heads.append(None if kind.is_dynamic else encoded)
        tails.append(encoded if kind.is_dynamic else b"")
    offset = sum(WORD if head is None else len(head) for head in heads)
    done = []
    for head, tail in zip(heads, tails, strict=True):
        done.append(_word(offset) if head is None else head)
        offset += len(tail)
    return b"".join(done) + b"".join(tails)


def _encode_one(kind: Type, value: Any) -> bytes:
    if (array := kind.element) is not None:
        element, count = array
        if count is not None and len(value) != count:
            raise AbiError(f"{len(value)} items for {kind.name}")
        items = encode([element] * len(value), list(value))
        return items if count is not None else _word(len(value)) + items
    if kind.name == "tuple":
        return encode(kind.parts, value)
    if kind.name in ("bytes", "string"):
        data = value.encode() if isinstance(value, str) else bytes(value)
        return _word(len(data)) + data.ljust(-(-len(data) // WORD) * WORD, b"\0")
    return _encode_word(kind.name, value)


def _encode_word(name: str, value: Any) -> bytes:
    if name == "address":
        if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
            raise AbiError(f"{value!r} is not an address")
        return bytes.fromhex(value[2:]).rjust(WORD, b"\0")
    if name == "bool":
        return _word(int(bool(value)))
    if (number := _NUMBER.fullmatch(name)) is not None:
        bits, signed = int(number[2]), not number[1]
        low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
        if not isinstance(value, int) or not low <= value < high:
            raise AbiError(f"{value!r} does not fit {name}")
        return value.to_bytes(WORD, "big", signed=signed)
    if (fixed := _FIXED.fullmatch(name)) is not None:
        if not isinstance(value, bytes) or len(value) != int(fixed[1]):
            raise AbiError(f"{value!r} does not fit {name}")
        return value.ljust(WORD, b"\0")
    raise AbiError(f"unknown type {name}")


def _word(value: int) -> bytes:
    return value.to_bytes(WORD, "big")


# --- decoding --------------------------------------------------------------------------------------------


def decode(types: Sequence[Type], data: bytes) -> tuple[Any, ...]:
    """The values in bytes that a contract returned."""
    return _decode_all(types, memoryview(data))


def _decode_all(types: Sequence[Type], data: memoryview) -> tuple[Any, ...]:
    values, at = [], 0
    for kind in types:
        start = _number(data, at) if kind.is_dynamic else at
        if start > len(data):
            raise AbiError("an offset outside the data")
        values.append(_decode_one(kind, data[start:]))
        at += kind.head_bytes
    return tuple(values)


def _decode_one(kind: Type, data: memoryview) -> Any:
    if (array := kind.element) is not None:
        element, count = array
        if count is None:
            count, data = _number(data, 0), data[WORD:]
        if count > MAX_ITEMS:
            raise AbiError(f"an array of {count} items")
        return list(_decode_all([element] * count, data))
    if kind.name == "tuple":
        return _decode_all(kind.parts, data)
    if kind.name in ("bytes", "string"):
        length = _number(data, 0)
        body = bytes(data[WORD : WORD + length])
        if len(body) != length:
            raise AbiError("bytes that are cut short")
        return body.decode("utf-8", "replace") if kind.name == "string" else body
    return _decode_word(kind.name, bytes(data[:WORD]))


def _decode_word(name: str, word: bytes) -> Any:
    if len(word) != WORD:
        raise AbiError("a word that is cut short")
    if name == "address":
        return "0x" + word[-20:].hex()
    if name == "bool":
        return word[-1] != 0
    if (number := _NUMBER.fullmatch(name)) is not None:
        return int.from_bytes(word, "big", signed=not number[1])
    if (fixed := _FIXED.fullmatch(name)) is not None:
        return word[: int(fixed[1])]
    raise AbiError(f"unknown type {name}")


def _number(data: memoryview, at: int) -> int:
    word = bytes(data[at : at + WORD])
    if len(word) != WORD:
        raise AbiError("a word that is cut short")
    return int.from_bytes(word, "big")
