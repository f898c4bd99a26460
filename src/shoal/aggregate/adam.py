"""Adam on the aggregated pseudo-gradient, whose variance can be frozen after a warm-up."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from shoal.aggregate.base import float32
from shoal.aggregate.exact import square_root
from shoal.aggregate.outer import check_decay, check_rate, check_weight_decay, shrink


class OuterAdam:
    """Adam with bias correction. Every coordinate moves by about `lr` a round, however small its update is: with many
    local steps a round begin near the inner rate, and raise `eps` towards the updates' size to calm it.

    With `freeze_after` the variance is learnt in that many first steps and then kept, the outer half of 1-bit Adam:
    the codec may then send signs. Give it a fifth of the rounds; a coordinate that had not moved by then takes its
    variance from the first update that moves it.

    `weight_decay` is decoupled, as in AdamW, and shrinks every parameter, gains and biases too."""

    slots: tuple[str, ...] = ("momentum", "variance")
    counts = True

    def __init__(
        self,
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        freeze_after: int = 0,
        weight_decay: float = 0.0,
    ) -> None:
        check_rate(lr)
        check_decay("beta1", beta1)
        check_decay("beta2", beta2)
        if not 1e-12 <= eps <= 1:
            raise ValueError(f"eps must be from 1e-12 to 1, not {eps}")
        if freeze_after < 0:
            raise ValueError(f"freeze_after must be at least 0, not {freeze_after}")
        self._lr, self._beta1, self._beta2, self._eps = lr, beta1, beta2, float32(eps)
        self.freeze_after = freeze_after
        check_weight_decay(weight_decay, lr)
        self._weight_decay = weight_decay

    def step(
        self,
        params: torch.Tensor,
        slots: dict[str, torch.Tensor],
        update: torch.Tensor,
        taken: int,
        rate: float = 1.0,
    ) -> None:
        momentum, variance = slots["momentum"], slots["variance"]
        momentum.mul_(float32(self._beta1)).add_(update * float32(1 - self._beta1))
        if self._learnt(taken) > taken:
            variance.mul_(float32(self._beta2)).add_(update.mul_(update).mul_(float32(1 - self._beta2)))
        else:
            self.settle(variance, update)
        self.move(params, slots, update, taken, rate)

    def settle(self, variance: torch.Tensor, gradient: torch.Tensor) -> None:
        """Give those that have no variance, now that it is frozen, this gradient's. Overwrites it."""
        known = 1 - power(self._beta2, self.freeze_after)
        gradient.mul_(gradient).mul_(float32(known)).mul_(torch.eq(variance, 0.0).to(torch.float32))
        variance.add_(gradient)

    def move(
        self,
        params: torch.Tensor,
        slots: Mapping[str, torch.Tensor],
        room: torch.Tensor,
        taken: int,
        rate: float,
    ) -> None:
        """The step itself, by momentum and variance as they are now. Overwrites `room`."""
        known = 1 - power(self._beta2, self._learnt(taken))
        square_root(room.copy_(slots["variance"])).mul_(float32(1 / math.sqrt(known))).add_(self._eps)
        shrink(params, self._lr * rate * self._weight_decay)
        size = self._lr * rate / (1 - power(self._beta1, taken + 1))
        params.sub_(torch.div(slots["momentum"], room, out=room).mul_(float32(size)))

    def _learnt(self, taken: int) -> int:
        """From how many steps the variance is, after this one."""
        return min(taken + 1, self.freeze_after or taken + 1)


def power(base: float, exponent: int) -> float:
    """A power by squaring: the library's may round otherwise on another machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
