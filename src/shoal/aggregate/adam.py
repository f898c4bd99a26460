"""Adam on the aggregated pseudo-gradient, whose variance can be frozen after a warm-up."""

from __future__ import annotations

import math

import torch

from shoal.aggregate.base import float32
from shoal.aggregate.exact import square_root
from shoal.aggregate.outer import check_decay, check_rate


class OuterAdam:
    """Adam with bias correction. Every coordinate moves by about `lr` a round, however small its update is: with many
    local steps a round begin near the inner rate, and raise `eps` towards the updates' size to calm it.

    With `freeze_after` the variance is learnt in that many first steps and then kept, the outer half of 1-bit Adam:
    the codec may then send signs. Give it a fifth of the rounds; a coordinate that had not moved by then takes its
    variance from the first update that moves it."""

    slots: tuple[str, ...] = ("momentum", "variance")
    counts = True

    def __init__(
        self,
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        freeze_after: int = 0,
    ) -> None:
        check_rate(lr)
        check_decay("beta1", beta1)
        check_decay("beta2", beta2)
        if not 1e-12 <= eps <= 1:
            raise ValueError(f"eps must be from 1e-12 to 1, not {eps}")
        if freeze_after < 0:
            raise ValueError(f"freeze_after must be at least 0, not {freeze_after}")
        self._lr, self._beta1, self._beta2, self._eps = lr, beta1, beta2, float32(eps)
        self._freeze_after = freeze_after

    def step(
        self, params: torch.Tensor, slots: dict[str, torch.Tensor], update: torch.Tensor, taken: int
    ) -> None:
        momentum, variance = slots["momentum"], slots["variance"]
        learnt = min(taken + 1, self._freeze_after or taken + 1)
        known = 1 - power(self._beta2, learnt)
        room = update * float32(1 - self._beta1)
        momentum.mul_(float32(self._beta1)).add_(room)
        torch.mul(update, update, out=room)
        if learnt > taken:
            variance.mul_(float32(self._beta2)).add_(room.mul_(float32(1 - self._beta2)))
        else:
            variance.add_(room.mul_(float32(known)).mul_(torch.eq(variance, 0.0, out=update)))
        square_root(room.copy_(variance)).mul_(float32(1 / math.sqrt(known))).add_(self._eps)
        rate = self._lr / (1 - power(self._beta1, taken + 1))
        params.sub_(torch.div(momentum, room, out=update).mul_(float32(rate)))


def power(base: float, exponent: int) -> float:
    """A power by squaring: the library's may round otherwise on another machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
