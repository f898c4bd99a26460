"""Outer optimisers: plain SGD, and SGD with Nesterov momentum, on the aggregated pseudo-gradient.

A pseudo-gradient points from the trained parameters back to the base, so a step subtracts it; SGD with rate 1
is therefore plain averaging of the nodes' models.
"""

from __future__ import annotations

import torch

from shoal.aggregate.base import float32


class OuterSGD:
    slots: tuple[str, ...] = ()

    def __init__(self, lr: float = 1.0) -> None:
        self._lr = float32(lr)

    def step(self, params: torch.Tensor, slots: dict[str, torch.Tensor], update: torch.Tensor) -> None:
        params.sub_(update.mul_(self._lr))


class OuterNesterov:
    """Retune `momentum` down when few rounds are planned: 0.9 needs hundreds to pay off."""

    slots: tuple[str, ...] = ("momentum",)

    def __init__(self, lr: float = 0.7, momentum: float = 0.9) -> None:
        self._lr, self._momentum = float32(lr), float32(momentum)

    def step(self, params: torch.Tensor, slots: dict[str, torch.Tensor], update: torch.Tensor) -> None:
        momentum = slots["momentum"]
        momentum.mul_(self._momentum).add_(update)
        update.add_(momentum * self._momentum).mul_(self._lr)
        params.sub_(update)
