"""A torch optimiser's state as bytes, without pickle.

In flows any optimiser whose state is tensors and plain numbers; out flows one byte string, and back. Layout: the
header's length (u32, little endian), the header (MessagePack), then safetensors. Invariant: one state has one
encoding, since claims carry its hash; bytes that do not fit the optimiser change nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from shoal.base.errors import ShoalError

MAX_HEADER_BYTES = 16 << 20


class _Header(msgspec.Struct, frozen=True):
    kind: str
    groups: list[dict[str, Any]]
    plain: dict[str, Any]
    """State values that are not tensors, by "parameter/name"."""


def encode_optimizer(optimizer: torch.optim.Optimizer) -> bytes:
    """Raises SH-TRAIN-01 where the state holds what cannot be written down."""
    state = optimizer.state_dict()
    flat = {f"{i}/{name}": value for i, own in state["state"].items() for name, value in own.items()}
    # Copies: parameters may share a tensor of the state, and safetensors keeps none that share memory.
    tensors = {
        key: flat[key].detach().cpu().clone(memory_format=torch.contiguous_format)
        for key in sorted(flat)
        if torch.is_tensor(flat[key])
    }
    plain = {key: flat[key] for key in sorted(flat) if not torch.is_tensor(flat[key])}
    groups = [{key: _plain(value) for key, value in group.items()} for group in state["param_groups"]]
    try:
        header = msgspec.msgpack.encode(_Header(type(optimizer).__name__, groups, plain))
    except TypeError as error:
        raise ShoalError(
            "SH-TRAIN-01",
            f"the state of {type(optimizer).__name__} cannot be kept: {error}",
            "use an optimiser whose state is tensors and plain numbers",
        ) from None
    return len(header).to_bytes(4, "little") + header + save(tensors)


def restore_optimizer(optimizer: torch.optim.Optimizer, data: bytes) -> None:
    """Bring the optimiser back to an encoded state. Raises SH-DISK-02, having changed nothing."""
    length = int.from_bytes(data[:4], "little")
    if not 0 < length <= min(MAX_HEADER_BYTES, len(data)):
        raise _malformed(f"a header of {length} bytes")
    try:
        header = msgspec.msgpack.decode(data[4 : 4 + length], type=_Header)
        tensors: dict[str, Any] = load(data[4 + length :])
    except (msgspec.DecodeError, msgspec.ValidationError, SafetensorError) as error:
        raise _malformed(str(error)) from error
    if header.kind != type(optimizer).__name__:
        raise _malformed(f"it belongs to {header.kind}")
    state: dict[int | str, dict[str, Any]] = {}
    for key, value in {**header.plain, **tensors}.items():
        number, _, name = key.partition("/")
        # What an optimiser keeps for all parameters together has a name and no number.
        state.setdefault(int(number) if number.isdecimal() else number, {})[name] = value
    try:
        optimizer.load_state_dict({"state": state, "param_groups": header.groups})
    except (ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise _malformed(str(error)) from error


def _plain(value: Any) -> Any:
    """A group's setting as a plain value; rates may be tensors of one number."""
    return value.item() if torch.is_tensor(value) else value


def _malformed(cause: str) -> ShoalError:
    return ShoalError(
        "SH-DISK-02", f"the saved optimiser state cannot be used: {cause}", "the node begins with a fresh one"
    )
