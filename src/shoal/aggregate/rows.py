"""What a robust rule votes on: rows, each an update or a fixed mixture of updates.

In flow a round's updates; out flow inner products, distances, chunks of all rows, and sums of them. Invariant: numbers
about rows are float64 and their sums exactly rounded, so that they do not depend on the updates' order; values are only
ever mixed elementwise, chunk by chunk, and no row exists as a whole.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from shoal.aggregate.base import LARGEST, Combine, Gathering, float32
from shoal.aggregate.mean import weighted_sum
from shoal.aggregate.sketch import Vector, inner_products
from shoal.codec.base import Source

Matrix = Sequence[Sequence[float]]


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(map(operator.mul, left, right))


@dataclass(frozen=True)
class Rows:
    gathering: Gathering
    weights: tuple[float, ...]
    """Of each row; they add up to one."""
    earlier: Rows | None = None
    """What these are mixtures of; None for updates as they came."""
    mix: tuple[tuple[float, ...], ...] = ()
    """By row, the share of each earlier one."""

    def __len__(self) -> int:
        return len(self.weights)

    def mixed(self, shares: Matrix, weights: Sequence[float]) -> Rows:
        """New rows, each a mixture of these."""
        return Rows(self.gathering, tuple(weights), self, tuple(map(tuple, shares)))

    @cached_property
    def sources(self) -> list[Source]:
        return [update.source for update in self.gathering.updates]

    @cached_property
    def reach(self) -> float:
        """How far the round moves the model: the part of the whole fleet's weight that is here."""
        return sum(update.weight for update in self.gathering.updates) / self.gathering.whole

    @cached_property
    def momentum(self) -> Vector | None:
        """Where the model has been going, if the outer optimiser keeps it."""
        found = self.gathering.slots.get("momentum")
        return None if found is None else Vector(found)

    @cached_property
    def products(self) -> list[list[float]]:
        """The inner product of every row with every other."""
        return [row[: len(self)] for row in self._products(())]

    @cached_property
    def products_and_momentum(self) -> list[list[float]]:
        """The same, with the momentum as one more row at the end; without one, the same."""
        return self._products(() if self.momentum is None else (self.momentum,))

    def _products(self, beside: tuple[Source, ...]) -> list[list[float]]:
        if self.earlier is None:
            here = self.gathering
            return inner_products([*self.sources, *beside], here.numel, here.device, here.seed)
        before = self.earlier.products_and_momentum if beside else self.earlier.products
        others = [0.0] * len(self.earlier)
        shares = [[*row, *(0.0 for _ in beside)] for row in self.mix] + [[*others, 1.0] for _ in beside]
        half = [[dot(share, row) for row in before] for share in shares]
        return [[dot(left, share) for share in shares] for left in half]

    @cached_property
    def apart(self) -> list[list[float]]:
        """The squared distance of every row from every other."""
        g, every = self.products, range(len(self))
        return [[max(0.0, g[i][i] + g[j][j] - 2 * g[i][j]) if i != j else 0.0 for j in every] for i in every]

    def shares_of_updates(self, shares: Sequence[float]) -> list[float]:
        """What so much of each row is of each update."""
        if self.earlier is None:
            return list(shares)
        columns = zip(*self.mix, strict=True)
        return self.earlier.shares_of_updates([dot(shares, column) for column in columns])

    def sum_of(self, shares: Sequence[float], of_momentum: float = 0.0) -> Combine:
        """So much of each row, and of the momentum, as the round's aggregate."""
        factors = [share * self.reach for share in self.shares_of_updates(shares)]
        parts = [(source, factor) for source, factor in zip(self.sources, factors, strict=True) if factor]
        if of_momentum and self.momentum is not None:
            parts.append((self.momentum, of_momentum * self.reach))
        parts = parts or [(self.sources[0], 0.0)]
        return weighted_sum([source for source, _ in parts], [factor for _, factor in parts])

    def mean(self) -> Combine:
        return self.sum_of(self.weights)

    def read(self, start: int, stop: int, device: torch.device) -> list[torch.Tensor]:
        """This range of every row. Zeros have no sign, and values no more size than an aggregate may have."""
        block = torch.empty(len(self.sources), stop - start, device=device)
        for source, values in zip(self.sources, block, strict=True):
            source.decode(start, stop, 1.0, values)
        block.clamp_(-LARGEST, LARGEST).add_(0.0)
        return self._mixtures(list(block))

    def _mixtures(self, updates: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.earlier is None:
            return updates
        before, found = self.earlier._mixtures(updates), []
        scratch = torch.empty_like(updates[0])
        for shares in self.mix:
            row = torch.zeros_like(scratch)
            for values, share in zip(before, shares, strict=True):
                if share:
                    row.add_(torch.mul(values, float32(share), out=scratch))
            found.append(row)
        return found


def rows_of(gathering: Gathering) -> Rows:
    """Every update a row, with its share of the weight that is here."""
    whole = sum(update.weight for update in gathering.updates)
    return Rows(gathering, tuple(update.weight / whole for update in gathering.updates))


def nearest(distances: Sequence[float], count: int) -> list[float]:
    """1 for the `count` least of these, 0 for the others; those that tie for the last places share them."""
    last = sorted(distances)[count - 1]
    nearer = sum(distance < last for distance in distances)
    tied = sum(distance == last for distance in distances)
    return [
        1.0 if distance < last else (count - nearer) / tied if distance == last else 0.0
        for distance in distances
    ]


def by_weight(chosen: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Shares that add up to one, by weight among the chosen."""
    parts = list(map(operator.mul, chosen, weights))
    whole = math.fsum(parts)
    return [part / whole for part in parts]


def lower_median(values: Sequence[float]) -> float:
    """The least value that, with all below it, is half of them."""
    return sorted(values)[(len(values) - 1) // 2]
