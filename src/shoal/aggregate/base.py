"""What an aggregator and an outer optimiser are: many updates to one, and one update to a new state.

In flow opened updates with integer weights, in seal order; out flow float32 values. Invariant: the result is
the same bits on every machine: elementwise IEEE operations one at a time, in a fixed order, no library
reductions; scalars are computed in float64 by Python and rounded once to float32.

To add one: one file with a class like those here, and one line in `aggregate/__init__.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from shoal.codec.base import Source

Combine = Callable[[int, int, torch.Tensor, torch.Tensor], None]
"""(start, stop, out, scratch): write the aggregate of values [start, stop) to `out`; both have that length."""

_CPU = torch.device("cpu")

LARGEST = 2.0**60
"""No value of an aggregate counts for more than this, so that no number of rounds can overflow the state."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """One accepted update of a fragment, as its seal lists it."""

    source: Source
    weight: int
    age: int = 0
    """How many versions the fragment had moved on since the update's base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """What a seal brings together for one fragment."""

    updates: Sequence[Sealed]
    whole: int
    """The weight that counts as the whole fleet; at least the sum of the weights that are here."""
    numel: int
    slots: Mapping[str, torch.Tensor]
    """The outer optimiser's state of the fragment, before the step; to be read only."""
    device: torch.device = _CPU
    """Where the fragment is folded, and so where reductions over it are best made."""
    seed: str | None = None
    """A hash of every update that is here, so that nobody could know it when choosing one's own; None if the caller
    has none. Rules that draw, draw from it."""


class Aggregator(Protocol):
    @property
    def reads(self) -> tuple[str, ...]:
        """The outer optimiser's state vectors that it looks at, where the optimiser has them."""

    def begin(self, gathering: Gathering) -> Combine:
        """Look at the updates as a whole, then combine them range by range."""


@runtime_checkable
class Guarded(Protocol):
    """An aggregator that holds only against a minority."""

    def refusal(self, nodes: int) -> str:
        """Why so many nodes are too few for it, with the numbers; "" if they are enough."""


class OuterOptimizer(Protocol):
    slots: tuple[str, ...]
    """Names of the state vectors it keeps beside the parameters, each as long as they are."""

    counts: bool
    """Whether its rule depends on how many steps a fragment has taken; the state then counts them."""

    def step(
        self,
        params: torch.Tensor,
        slots: dict[str, torch.Tensor],
        update: torch.Tensor,
        taken: int,
        rate: float = 1.0,
    ) -> None:
        """Change `params` and `slots` in place by the aggregate, which may be overwritten. `taken` is how many
        steps the fragment took before this one, if the optimiser counts them; `rate` is a factor on the
        optimiser's own rate, for this step."""


@runtime_checkable
class Preparing(Protocol):
    """An outer optimiser that wants something else than bare updates."""

    def outgoing(self, update: torch.Tensor, slots: Mapping[str, torch.Tensor], taken: int) -> torch.Tensor:
        """What a node sends for its update of a fragment, whose state this is. It is no sum of steps any more: of
        what a rejected claim had, nothing can be kept for the next."""


_LARGEST_FLOAT32 = (2 - 2.0**-23) * 2.0**127


def float32(value: float) -> float:
    """Round once to float32, so that every device multiplies by the same number. What is too large becomes the largest:
    no update may stop a fold."""
    within = max(-_LARGEST_FLOAT32, min(_LARGEST_FLOAT32, value))
    return float(struct.unpack("<f", struct.pack("<f", within))[0])
