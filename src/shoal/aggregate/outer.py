"""Outer optimisers: plain SGD, and SGD with Nesterov momentum, on the aggregated pseudo-gradient.

A pseudo-gradient points from the trained parameters back to the base, so a step subtracts it; SGD with rate 1
is therefore plain averaging of the nodes' models.
"""

from __future__ import annotations

import torch

from shoal.aggregate.base import float32


def check_rate(lr: float) -> None:
    if not 0 < lr <= 100:
        raise ValueError(f"lr must be above 0 and at most 100, not {lr}")


def check_decay(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, not {value}")


def check_weight_decay(value: float, lr: float) -> None:
    if not 0 <= value * lr < 1 or value < 0:
        raise ValueError(f"weight_decay must be at least 0 and, times lr, below 1, not {value}")


def shrink(params: torch.Tensor, share: float) -> None:
    """Decoupled weight decay, of every parameter: which of them are gains or biases the fold does not know."""
    if share:
        params.mul_(float32(1 - share))


class OuterSGD:
    slots: tuple[str, ...] = ()
    counts = False

    def __init__(self, lr: float = 1.0) -> None:
        check_rate(lr)
        self._lr = float32(lr)

    def step(
        self,
        params: torch.Tensor,
        slots: dict[str, torch.Tensor],
        update: torch.Tensor,
        taken: int,
        rate: float = 1.0,
    ) -> None:
        params.sub_(update.mul_(float32(self._lr * rate)))


class OuterNesterov:
    """Retune `momentum` down when few rounds are planned: 0.9 needs hundreds to pay off."""

    slots: tuple[str, ...] = ("momentum",)
    counts = False

    def __init__(self, lr: float = 0.7, momentum: float = 0.9) -> None:
        check_rate(lr)
        check_decay("momentum", momentum)
        self._lr, self._momentum = float32(lr), float32(momentum)

    def step(
        self,
        params: torch.Tensor,
        slots: dict[str, torch.Tensor],
        update: torch.Tensor,
        taken: int,
        rate: float = 1.0,
    ) -> None:
        momentum = slots["momentum"]
        momentum.mul_(self._momentum).add_(update)
        update.add_(momentum * self._momentum).mul_(float32(self._lr * rate))
        params.sub_(update)
