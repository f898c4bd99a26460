"""One row of a matrix of models, as a learner sees its trainer.

In flows the matrix that trains all of them at once; out flows one member's view of it. Invariant: steps and validation
are everybody's at once, so a row is never asked for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from shoal.base.layout import Layout
from shoal.data.assignment import Indices
from shoal.training.trainer import StepResult


class Stack(Protocol):
    layout: Layout
    params: torch.Tensor
    """[members, parameters], changed in place."""


@dataclass(frozen=True, slots=True)
class Row:
    stack: Stack
    number: int

    @property
    def layout(self) -> Layout:
        return self.stack.layout

    def params(self) -> torch.Tensor:
        return self.stack.params[self.number]

    def load(self, params: torch.Tensor) -> None:
        self.stack.params[self.number].copy_(params)

    def local_state(self) -> bytes:
        return b""

    def step(self, indices: Indices, step_number: int) -> StepResult:
        raise AssertionError("the stack steps all its rows at once")

    def load_local_state(self, data: bytes) -> None:
        raise AssertionError("a stack is never resumed")

    def evaluate(self, max_batches: int) -> float:
        raise AssertionError("the stack validates")
