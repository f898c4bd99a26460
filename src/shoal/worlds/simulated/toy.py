"""A toy trainer: arithmetic that folds like a model, for seeds by the thousand.

In flow sample indices; out flow parameters that move towards a point the data decides. Invariant: it has
everything a real trainer has (layout, inner state, schedule, validation) at a few dozen numbers.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from shoal.base.errors import ShoalError
from shoal.base.layout import Layout, make_layout
from shoal.data.assignment import Indices
from shoal.training.trainer import StepResult


def toy_layout(size: int, fragments: int) -> Layout:
    third = size // 3
    return make_layout([("a", (third,)), ("b", (third,)), ("c", (size - 2 * third,))], fragments)


@lru_cache(maxsize=64)
def _target(numel: int) -> npt.NDArray[np.float32]:
    target = np.linspace(-1, 1, numel, dtype=np.float32)
    target.flags.writeable = False  # It is everybody's.
    return target


class ToyTrainer:
    """Implements `training.trainer.Trainer`: each step moves the parameters towards the batch's mean sample."""

    def __init__(self, layout: Layout, batch_size: int, *, rate: float = 0.1) -> None:
        self.layout = layout
        self.batch_size = batch_size
        self._rate = rate
        self._params = np.zeros(layout.numel, dtype=np.float32)
        self._velocity = np.zeros(layout.numel, dtype=np.float32)
        self._target = _target(layout.numel)

    def params(self) -> torch.Tensor:
        return torch.from_numpy(self._params)

    def load(self, params: torch.Tensor) -> None:
        self._params[:] = params.numpy()

    def step(self, indices: Indices, step_number: int) -> StepResult:
        noise = float(int(indices.sum()) % 97) / 97 - 0.5
        error = self._params - self._target - noise * 0.1
        self._velocity *= 0.5
        self._velocity += error
        self._params -= self._velocity * self._rate
        loss = float(error @ error) / len(error)
        return StepResult(loss=loss, samples=len(indices), tokens=len(indices))

    def local_state(self) -> bytes:
        return self._velocity.tobytes()

    def load_local_state(self, data: bytes) -> None:
        if len(data) != 4 * self.layout.numel:
            raise ShoalError("SH-DISK-02", "a toy's state has another size", "begin anew")
        self._velocity = np.frombuffer(bytearray(data), dtype=np.float32)

    def evaluate(self, max_batches: int) -> float:
        error = self._params - self._target
        return float(error @ error) / len(error)
