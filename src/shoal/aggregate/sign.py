"""Signs of the aggregated pseudo-gradient: every coordinate moves by the rate, and by nothing else."""

from __future__ import annotations

import torch

from shoal.aggregate.base import float32
from shoal.aggregate.outer import check_rate, check_weight_decay, shrink


class OuterSign:
    """A step of `lr` against each coordinate's sign, none where the aggregate is zero: the outer half of DeMo. Momentum
    is the codec's error feedback. The rate is that of an Adam, and wants the same warm-up and decay.

    `weight_decay` is decoupled, and shrinks every parameter, gains and biases too."""

    slots: tuple[str, ...] = ()
    counts = False

    def __init__(self, lr: float = 0.001, weight_decay: float = 0.0) -> None:
        check_rate(lr)
        check_weight_decay(weight_decay, lr)
        self._lr, self._weight_decay = lr, weight_decay

    def step(
        self,
        params: torch.Tensor,
        slots: dict[str, torch.Tensor],
        update: torch.Tensor,
        taken: int,
        rate: float = 1.0,
    ) -> None:
        shrink(params, self._lr * rate * self._weight_decay)
        # By comparisons, so that either zero has the sign 0.
        below = torch.lt(update, 0.0).to(torch.float32)
        params.sub_(torch.gt(update, 0.0, out=update).sub_(below).mul_(float32(self._lr * rate)))
