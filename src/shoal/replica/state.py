"""The global state: parameters and the outer optimiser's vectors, by fragment, with hashes.

In flow flat float32 vectors; out flow hashes and snapshot bytes. Invariant: the hash depends only on the
values' bits and the layout, and the same state always gives the same snapshot bytes, so that every node's
snapshot of one version is one blob.
"""

from __future__ import annotations

from dataclasses import dataclass

import blake3
import msgspec
import torch

from shoal.base.errors import ShoalError
from shoal.base.layout import Layout

HASH_CHUNK_BYTES = 1 << 20
_MAGIC = b"shoal-state-1\n"


@dataclass(frozen=True, slots=True)
class State:
    """`params` and each slot are flat float32 vectors of the layout's length. Never changed in place."""

    layout: Layout
    params: torch.Tensor
    slots: dict[str, torch.Tensor]
    steps: tuple[int, ...] = ()
    """By fragment, how many outer steps it has taken; () before the first, and if the optimiser does not count."""

    def taken(self, fragment: int) -> int:
        return self.steps[fragment] if self.steps else 0


def initial_state(
    layout: Layout, params: torch.Tensor, slots: tuple[str, ...], device: torch.device | str = "cpu"
) -> State:
    """The state a run begins with: given parameters, zero optimiser vectors. It is folded where it is."""
    flat = params.detach().to(device, torch.float32).clone()
    return State(layout, flat, {name: torch.zeros_like(flat) for name in slots})


def state_hash(state: State) -> str:
    """The Merkle root: chunks under vectors under fragments under the state."""
    root = blake3.blake3(b"state")
    vectors = [(name.encode(), _bytes_of(vector)) for name, vector in _vectors(state)]
    for index, fragment in enumerate(state.layout.fragments):
        node = blake3.blake3(fragment.name.encode())
        for name, values in vectors:
            node.update(name)
            for chunk in _chunks(values[4 * fragment.start : 4 * fragment.stop]):
                node.update(blake3.blake3(chunk).digest())
        if state.steps:
            node.update(b"steps").update(state.steps[index].to_bytes(8, "little"))
        root.update(node.digest())
    return root.hexdigest()


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    numel: int
    slots: list[str]
    steps: tuple[int, ...] = ()


def encode_state(state: State) -> bytes:
    """Snapshot bytes: a header, then each vector's little-endian values."""
    header = msgspec.msgpack.encode(_Header(state.layout.numel, sorted(state.slots), state.steps))
    parts = [_MAGIC, len(header).to_bytes(4, "little"), header]
    return b"".join([*parts, *(_bytes_of(vector) for _, vector in _vectors(state))])


def decode_state(data: bytes, layout: Layout) -> State:
    """The state in snapshot bytes. Raises SH-BLOB-02 if they are not a state of this layout."""
    start = len(_MAGIC) + 4
    try:
        if not data.startswith(_MAGIC):
            raise ValueError("not a snapshot")
        body = start + int.from_bytes(data[len(_MAGIC) : start], "little")
        header = msgspec.msgpack.decode(data[start:body], type=_Header)
        if header.numel != layout.numel or len(data) != body + 4 * header.numel * (1 + len(header.slots)):
            raise ValueError("its size does not fit the model")
        if len(set(header.slots)) != len(header.slots):
            raise ValueError("it has one slot twice")
        if header.steps and not _are_steps(header.steps, layout):
            raise ValueError("its counts of steps do not fit the model")
    except (ValueError, msgspec.DecodeError) as error:
        raise ShoalError("SH-BLOB-02", f"a snapshot cannot be read: {error}", "fetch it again") from None
    values = torch.frombuffer(bytearray(memoryview(data)[body:]), dtype=torch.float32)
    params, *slots = values.view(1 + len(header.slots), header.numel).unbind()
    return State(layout, params, dict(zip(header.slots, slots, strict=True)), header.steps)


def _are_steps(steps: tuple[int, ...], layout: Layout) -> bool:
    """Whether a state can have these: no counts at all are written as none, so that a state has one writing."""
    return len(steps) == len(layout.fragments) and any(steps) and all(0 <= count < 1 << 62 for count in steps)


def _vectors(state: State) -> list[tuple[str, torch.Tensor]]:
    return [("params", state.params), *sorted(state.slots.items())]


def _chunks(view: memoryview) -> list[memoryview]:
    return [view[i : i + HASH_CHUNK_BYTES] for i in range(0, len(view), HASH_CHUNK_BYTES)]


def _bytes_of(vector: torch.Tensor) -> memoryview:
    return memoryview(vector.detach().cpu().contiguous().numpy().data).cast("B")
