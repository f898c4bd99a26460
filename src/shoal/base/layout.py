"""How a model's parameters lie in one flat vector, and how that vector is cut into fragments.

In flow tensor names and shapes in model order; out flow offsets. Invariant: fragments are contiguous, cover
the vector exactly once, and are the same on every machine, since claims and seals name them by index.
"""

from __future__ import annotations

import itertools
import math

import msgspec


class TensorSpec(msgspec.Struct, frozen=True):
    """One parameter tensor: its name in the model's state_dict, its shape and where it starts."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class FragmentSpec(msgspec.Struct, frozen=True):
    """A contiguous part [start, stop) of the flat parameter vector that is synchronised as one."""

    name: str
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


class Layout(msgspec.Struct, frozen=True):
    """The whole vector: its tensors in order and its fragments in order."""

    tensors: tuple[TensorSpec, ...]
    fragments: tuple[FragmentSpec, ...]

    @property
    def numel(self) -> int:
        return self.fragments[-1].stop if self.fragments else 0


def make_layout(shapes: list[tuple[str, tuple[int, ...]]], fragments: int = 1) -> Layout:
    """Lay the tensors one after another and cut them, at tensor borders, into about equal fragments."""
    tensors: list[TensorSpec] = []
    offset = 0
    for name, shape in shapes:
        tensors.append(TensorSpec(name, shape, offset))
        offset += math.prod(shape)
    cuts = [0]
    for tensor in tensors[1:]:
        if len(cuts) < fragments and tensor.offset >= offset * len(cuts) / fragments:
            cuts.append(tensor.offset)
    cuts.append(offset)
    parts = tuple(
        FragmentSpec(f"part{i}", start, stop)
        for i, (start, stop) in enumerate(itertools.pairwise(cuts))
        if stop > start
    )
    return Layout(tuple(tensors), parts)
