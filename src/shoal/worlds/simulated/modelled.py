"""Trainers that model their training: they move the way a real trainer moved from the same parameters.

In flow parameters and steps; out flow parameters and losses, at the cost of a vector operation. Invariant: every
direction was really trained, by a real trainer of the same model from the very same parameters, on samples drawn by the
seed; how far a modelled node goes along it wears off as a real one's progress does.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import blake3
import torch

from shoal.base.layout import Layout
from shoal.data.assignment import Indices, sample_indices
from shoal.training.trainer import StepResult, Trainer

PATH_STEPS = 6
"""How many real steps a recorded path has."""
WEAR = 0.9
"""Each modelled step goes this much of the one before it."""
MOST_PATHS = 512


@dataclass(frozen=True, slots=True)
class Recorded:
    """A path that was really trained: where it led to, and the losses on the way."""

    moved: torch.Tensor
    losses: tuple[float, ...]


class Paths:
    """Really trained paths, by the parameters they begin at and by who draws; the latest few are kept."""

    def __init__(self, real: Trainer, *, items: int, batch: int, seed: int) -> None:
        self._real = real
        self._items, self._batch, self._seed = items, batch, seed
        self._kept: OrderedDict[tuple[bytes, int], Recorded] = OrderedDict()
        self.recorded = 0
        """How many there were."""

    @property
    def layout(self) -> Layout:
        return self._real.layout

    def first(self) -> torch.Tensor:
        """The parameters that the real model begins with."""
        return self._real.params().detach().clone()

    def path(self, begin: torch.Tensor, draw: int) -> Recorded:
        key = (blake3.blake3(begin.numpy().tobytes()).digest(), draw)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._record(begin, draw)
            if len(self._kept) > MOST_PATHS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def _record(self, begin: torch.Tensor, draw: int) -> Recorded:
        real, losses = self._real, []
        real.load(begin)
        for number in range(PATH_STEPS):
            start = ((self.recorded + draw) * PATH_STEPS + number) * self._batch
            indices = sample_indices(self._seed, start, self._batch, self._items)
            losses.append(real.step(indices, number).loss)
        self.recorded += 1
        return Recorded(real.params().detach() - begin, tuple(losses))

    def evaluate(self, params: torch.Tensor, max_batches: int) -> float:
        self._real.load(params)
        return self._real.evaluate(max_batches)


class ModelledTrainer:
    """Implements `training.trainer.Trainer`. Its next path is looked up where the last merge left it."""

    def __init__(self, paths: Paths, draw: int) -> None:
        self.layout = paths.layout
        self._paths, self._draw = paths, draw
        self._params = paths.first()
        self._along: Recorded | None = None
        self._taken = 0

    def params(self) -> torch.Tensor:
        return self._params

    def load(self, params: torch.Tensor) -> None:
        self._params.copy_(params)
        self._along = None

    def step(self, indices: Indices, step_number: int) -> StepResult:
        if self._along is None:
            self._along, self._taken = self._paths.path(self._params, self._draw), 0
        self._params.add_(self._along.moved, alpha=_share(self._taken))
        loss = self._along.losses[min(self._taken, PATH_STEPS - 1)]
        self._taken += 1
        return StepResult(loss=loss, samples=len(indices), tokens=len(indices))

    def local_state(self) -> bytes:
        return b""

    def load_local_state(self, data: bytes) -> None:
        """There is none: where it is on its path is looked up anew."""

    def evaluate(self, max_batches: int) -> float:
        return self._paths.evaluate(self._params, max_batches)


def _share(taken: int) -> float:
    """Of a path, what the next modelled step goes: all steps of a path's length together go the whole of it."""
    return float((1 - WEAR) * WEAR**taken / (1 - WEAR**PATH_STEPS))
