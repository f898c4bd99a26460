"""A trainer's memory between claims, as bytes.

In flow the inner optimiser's tensors and step count; out flows one byte string, and back. Layout: the
header's length (u32, little endian), the header (MessagePack), then safetensors. Invariant: one state has one
encoding, since claims carry its hash; bytes that do not fit the optimiser change nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from shoal.base.errors import ShoalError
from shoal.training.optimisers import InnerOptimiser

MAX_HEADER_BYTES = 1024


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    optimiser: Literal["sgd", "adamw", "muon"]
    count: int
    version: Literal[1] = 1


def encode_state(kind: Literal["sgd", "adamw", "muon"], optimiser: InnerOptimiser) -> bytes:
    header = msgspec.msgpack.encode(_Header(kind, optimiser.count))
    tensors = {name: tensor.detach().cpu() for name, tensor in optimiser.state.items()}
    return len(header).to_bytes(4, "little") + header + save(tensors)


def restore_state(kind: Literal["sgd", "adamw", "muon"], optimiser: InnerOptimiser, data: bytes) -> None:
    """Bring the optimiser back to an encoded state. Raises SH-DISK-02, having changed nothing."""
    length = int.from_bytes(data[:4], "little")
    if not 0 < length <= MAX_HEADER_BYTES:
        raise _malformed(f"a header of {length} bytes")
    try:
        header = msgspec.msgpack.decode(data[4 : 4 + length], type=_Header)
        tensors = load(data[4 + length :])
    except (msgspec.DecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise _malformed(str(error)) from error
    if header.optimiser != kind or header.count < 0:
        raise _malformed(f"it belongs to {header.optimiser} after {header.count} steps")
    if _forms(tensors) != _forms(optimiser.state):
        raise _malformed("its tensors are not this optimiser's")
    for name, target in optimiser.state.items():
        target.copy_(tensors[name])
    optimiser.count = header.count


def _forms(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


def _malformed(cause: str) -> ShoalError:
    return ShoalError(
        "SH-DISK-02",
        f"the saved training state cannot be used: {cause}",
        "leave it out; the node starts afresh",
    )
