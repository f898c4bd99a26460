"""Adam in two halves: gradients until its variance is learnt, and from then on momenta, which signs are enough for."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shoal.aggregate.adam import OuterAdam
from shoal.aggregate.base import LARGEST, float32


class OneBitAdam:
    """1-bit Adam (arXiv 2102.02888). For `freeze_after` steps of each fragment this is Adam. Then the variance stays as
    it is, and nodes send what the momentum would be by their own gradient alone; the mean of these, whatever codecs
    made of it, is the momentum. It changes little from step to step, so that error feedback keeps up with it: a
    gradient sent at one bit loses several times more.

    Give `freeze_after` a quarter of the rounds, and let them be sent whole (`codec.warmup_rounds`). A coordinate that
    had not moved by then takes its variance from the first momentum that moves it."""

    slots: tuple[str, ...] = ("momentum", "variance")
    counts = True

    def __init__(
        self,
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        freeze_after: int = 200,
        weight_decay: float = 0.0,
    ) -> None:
        if freeze_after < 1:
            raise ValueError(f"freeze_after must be at least 1, not {freeze_after}")
        self.freeze_after = freeze_after
        self._adam = OuterAdam(lr, beta1, beta2, eps, freeze_after, weight_decay)
        self._beta1 = beta1

    def outgoing(self, update: torch.Tensor, slots: Mapping[str, torch.Tensor], taken: int) -> torch.Tensor:
        if taken < self.freeze_after:
            return update
        kept = slots["momentum"].to(update.device) * float32(self._beta1)
        return kept.add_(update * float32(1 - self._beta1))

    def step(
        self,
        params: torch.Tensor,
        slots: dict[str, torch.Tensor],
        update: torch.Tensor,
        taken: int,
        rate: float = 1.0,
    ) -> None:
        if taken < self.freeze_after:
            self._adam.step(params, slots, update, taken, rate)
            return
        slots["momentum"].copy_(update)
        gradient = update.mul_(float32(1 / (1 - self._beta1))).clamp_(-LARGEST, LARGEST)
        self._adam.settle(slots["variance"], gradient)
        self._adam.move(params, slots, update, taken, rate)
