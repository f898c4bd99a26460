"""Nesterov momentum that waits: rounds are taken at once, momentum is moved once in so many of them."""

from __future__ import annotations

import torch

from shoal.aggregate.base import float32
from shoal.aggregate.outer import check_decay, check_rate


class DelayedNesterov:
    """Delayed Nesterov, from asynchronous local SGD (arXiv 2401.09135). Each round is a plain step; every `period`-th
    also moves the momentum by the sum of the last `period` and steps along it. So a period is one step of
    Nesterov on its sum, and stale updates that arrive one by one do not each fling the momentum their way.

    The paper divides each arrival by `period`; here a round already counts for the part of the fleet that is in it.
    Set `period` to about how many seals the whole fleet needs to be heard once; 1 is plain Nesterov."""

    slots: tuple[str, ...] = ("momentum", "pending")
    counts = True

    def __init__(self, lr: float = 0.7, momentum: float = 0.9, period: int = 8) -> None:
        check_rate(lr)
        check_decay("momentum", momentum)
        if not 1 <= period <= 10_000:
            raise ValueError(f"period must be from 1 to 10000, not {period}")
        self._lr, self._momentum, self._period = float32(lr), float32(momentum), period

    def step(
        self,
        params: torch.Tensor,
        slots: dict[str, torch.Tensor],
        update: torch.Tensor,
        taken: int,
        rate: float = 1.0,
    ) -> None:
        momentum, pending = slots["momentum"], slots["pending"]
        pending.add_(update)
        if (taken + 1) % self._period == 0:
            momentum.mul_(self._momentum).add_(pending)
            pending.zero_()
            update.add_(momentum * self._momentum)
        params.sub_(update.mul_(float32(self._lr * rate)))
