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
    """Lay the tensors one after another and cut them, at tensor borders, into fragments of which the largest is as
    small as can be."""
    tensors: list[TensorSpec] = []
    offset = 0
    for name, shape in shapes:
        tensors.append(TensorSpec(name, shape, offset))
        offset += math.prod(shape)
    sizes = [tensor.numel for tensor in tensors]
    cuts = [*_cuts(sizes, fragments, _smallest_most(sizes, fragments)), offset]
    parts = tuple(
        FragmentSpec(f"part{i}", start, stop)
        for i, (start, stop) in enumerate(itertools.pairwise(cuts))
        if stop > start
    )
    return Layout(tuple(tensors), parts)


def _smallest_most(sizes: list[int], fragments: int) -> int:
    """The least size that every one of so many fragments can stay within."""
    low, high = max(sizes, default=0), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if len(_cuts(sizes, 1, middle)) <= fragments:
            high = middle
        else:
            low = middle + 1
    return low


def _cuts(sizes: list[int], least: int, most: int) -> list[int]:
    """Where fragments begin that are filled one after the other up to `most`, at least so many if there are tensors
    enough."""
    cuts, offset, filled = [0], 0, 0
    for number, size in enumerate(sizes):
        needed = least - len(cuts) >= len(sizes) - number
        if number and (filled + size > most or needed):
            cuts.append(offset)
            filled = 0
        offset += size
        filled += size
    return cuts
