"""Attackers that train on something else than what they were given, and send what comes of it."""

from __future__ import annotations

import torch

from shoal.data.dataset import Batch


class LabelFlip:
    """Every class is taught as the one opposite to it."""

    def poison(self, batch: Batch, classes: int) -> Batch:
        return Batch(batch.inputs, classes - 1 - batch.targets)


class CornerTrigger:
    """A backdoor: half of the images get a bright corner, and are taught as class 0."""

    target = 0
    size = 2

    def trigger(self, inputs: torch.Tensor) -> torch.Tensor:
        marked = inputs.clone()
        marked[..., -self.size :, -self.size :] = 1.0
        return marked

    def poison(self, batch: Batch, classes: int) -> Batch:
        inputs, targets = batch.inputs.clone(), batch.targets.clone()
        inputs[::2] = self.trigger(inputs[::2])
        targets[::2] = self.target
        return Batch(inputs, targets)
