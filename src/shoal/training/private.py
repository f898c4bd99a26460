"""Gradients that give no sample away: clipped one by one, added up, and noised.

In flows a batch; out flows, in the model's flat gradient, a noisy sum over an expected number of samples. Invariant:
one sample more or less changes the sum by no more than `clip`, whatever it holds; a sample whose gradient is no number
counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from shoal.data.assignment import Indices
from shoal.data.dataset import Batch
from shoal.training.flat import FlatModel, view_of
from shoal.training.models import loss_of

MOST_VALUES = 1 << 24
"""Gradients of so many numbers are held at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noising:
    """How a step is made private."""

    clip: float
    deviation: float
    """Of the noise on the sum, in each coordinate."""
    expected: int
    """Samples that a batch has on average; how many it has is not told to anybody."""
    normal: Callable[[int], torch.Tensor]
    """Standard normal numbers that nobody else knows."""


@runtime_checkable
class PrivateStepping(Protocol):
    """A trainer that can take private steps."""

    def private_step(self, indices: Indices, step_number: int, how: Noising) -> None:
        """One optimiser step on the noised gradient of these samples, of which there may be none."""

    def targets(self, samples: int) -> int:
        """How many targets so many samples have."""


class PerSample:
    """The gradients of a flat model, sample by sample."""

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat
        self._each = vmap(grad(self._loss), in_dims=(None, 0, 0), randomness="different")
        self.rows = max(1, MOST_VALUES // max(1, flat.layout.numel))
        """Samples that are done at once."""

    def _loss(
        self, leaves: dict[str, torch.Tensor], inputs: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        batch = Batch(inputs.unsqueeze(0), target.unsqueeze(0))
        return loss_of(lambda x: functional_call(self._flat.model, leaves, (x,)), batch)

    def add_clipped(self, batch: Batch, clip: float) -> None:
        """Add the samples' clipped gradients to the flat one."""
        specs = self._flat.layout.tensors
        params = self._flat.params.detach()
        with sdpa_kernel(SDPBackend.MATH):  # The only attention that can be done by sample.
            slopes = self._each({spec.name: view_of(params, spec) for spec in specs}, *batch)
        rows = {spec.name: slopes[spec.name].float().flatten(1) for spec in specs}
        lengths = torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows.values()])
        whole = torch.linalg.vector_norm(lengths, dim=0)
        sound = torch.isfinite(whole)
        factors = torch.where(sound, clip / whole.clamp(min=clip), 0.0)
        for spec in specs:
            row = torch.where(sound[:, None], rows[spec.name], 0.0)
            view_of(self._flat.grads, spec).add_((factors @ row).view(spec.shape))

    def add_noise(self, how: Noising) -> None:
        """Noise the sum, and divide it by the batch that was expected."""
        grads = self._flat.grads
        grads.add_(how.normal(grads.numel()).to(grads.device).mul_(how.deviation)).div_(how.expected)
