"""The contracts as this package ships them: how to call them, and what they answer.

In flow artifacts of the compiler and plain values; out flow call data, results, events and refusals in words.
Invariant: no user needs a compiler; `make` in `contracts/` made these files, and a test compiles them again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

from shoal.chain.abi import AbiError, Type, decode, encode, read_types
from shoal.chain.keccak import keccak256

_REVERT, _PANIC = bytes.fromhex("08c379a0"), bytes.fromhex("4e487b71")


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    selector: bytes
    inputs: tuple[Type, ...]
    outputs: tuple[Type, ...]
    output_fields: tuple[str, ...]
    """Where it returns one struct, the names of its fields."""

    def call(self, *values: Any) -> bytes:
        """Call data. Raises `AbiError`."""
        return self.selector + encode(self.inputs, values)

    def result(self, data: bytes) -> Any:
        """What the call gave: one value by itself, several as a tuple."""
        values = decode(self.outputs, data)
        return values[0] if len(values) == 1 else values

    def fields(self, data: bytes) -> dict[str, Any]:
        """The one struct that the call gave, by the names of its fields."""
        return dict(zip(self.output_fields, self.result(data), strict=True))


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    topic: str
    fields: tuple[tuple[str, Type, bool], ...]
    """Name, type, and whether it is indexed."""

    def read(self, log: dict[str, Any]) -> dict[str, Any]:
        """The event's fields from a receipt's log. Indexed fields of these contracts are single words."""
        topics = iter(log["topics"][1:])
        plain = iter(decode([k for _, k, i in self.fields if not i], bytes.fromhex(log["data"][2:])))
        return {
            name: decode([kind], bytes.fromhex(next(topics)[2:]))[0] if indexed else next(plain)
            for name, kind, indexed in self.fields
        }


@dataclass(frozen=True, slots=True)
class Interface:
    """A contract's ABI and the code that deploys it."""

    name: str
    bytecode: bytes
    constructor: tuple[Type, ...]
    functions: dict[str, Function]
    events: dict[str, Event] = field(default_factory=dict)
    """By topic."""
    errors: dict[bytes, Function] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Function:
        return self.functions[name]

    def deployment(self, *values: Any) -> bytes:
        return self.bytecode + encode(self.constructor, values)

    def refusal(self, data: bytes) -> str:
        """Why a call was refused, in the contract's words."""
        try:
            if data[:4] == _REVERT:
                return str(decode([Type("string")], data[4:])[0])
            if data[:4] == _PANIC:
                return f"panic {decode([Type('uint256')], data[4:])[0]:#x}"
            if (error := self.errors.get(data[:4])) is not None:
                values = ", ".join(map(str, decode(error.inputs, data[4:])))
                return f"{error.name}({values})"
        except AbiError:
            pass
        return f"0x{data.hex()[:80]}" if data else "no reason given"


def read_interface(artifact: dict[str, Any]) -> Interface:
    """From one of the compiler's JSON files."""
    functions, events, errors = {}, {}, {}
    constructor: tuple[Type, ...] = ()
    for item in artifact["abi"]:
        match item["type"]:
            case "function":
                functions[item["name"]] = _function(item)
            case "error":
                made = _function(item)
                errors[made.selector] = made
            case "event":
                event = _event(item)
                events[event.topic] = event
            case "constructor":
                constructor = read_types(item["inputs"])
    code = bytes.fromhex(artifact["bytecode"][2:])
    return Interface(artifact["name"], code, constructor, functions, events, errors)


def _function(item: dict[str, Any]) -> Function:
    inputs, outputs = read_types(item["inputs"]), item.get("outputs", [])
    selector = keccak256(_signature(item["name"], inputs).encode())[:4]
    parts = outputs[0].get("components", []) if len(outputs) == 1 else []
    names = tuple(part["name"] for part in parts)
    return Function(item["name"], selector, inputs, read_types(outputs), names)


def _event(item: dict[str, Any]) -> Event:
    kinds = read_types(item["inputs"])
    topic = "0x" + keccak256(_signature(item["name"], kinds).encode()).hex()
    fields = tuple(
        (one["name"], kind, one["indexed"]) for one, kind in zip(item["inputs"], kinds, strict=True)
    )
    return Event(item["name"], topic, fields)


def _signature(name: str, kinds: Sequence[Type]) -> str:
    return f"{name}({','.join(kind.canonical for kind in kinds)})"


ERC20_ABI = [
    {
        "type": "function",
        "name": "approve",
        "inputs": [{"name": "spender", "type": "address"}, {"name": "amount", "type": "uint256"}],
        "outputs": [],
    }
]
"""What a job in a token needs of it. Some tokens answer and some do not; the transfer tells."""


@lru_cache(maxsize=1)
def erc20() -> Interface:
    return read_interface({"name": "ERC20", "abi": ERC20_ABI, "bytecode": "0x"})


@lru_cache(maxsize=8)
def shipped(name: str) -> Interface:
    """NodeRegistry or TrainingRewards."""
    text = (files("shoal.chain") / "artifacts" / f"{name}.json").read_text("utf-8")
    return read_interface(json.loads(text))
