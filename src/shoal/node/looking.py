"""A screener's looks at the claims of a seal: which of its assigned samples, and what they add to a step.

In flow a trainer, the state that the claims began from and their assignments; out flow rows as long as the updates'.
Invariant: nothing but the losses and pulls of samples that the log assigned is computed, and no more of them than the
recipe pays for; samples are drawn by a seed that nobody knew when the claims were made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from shoal.audit.effects import Looking, Rung
from shoal.audit.selection import number
from shoal.audit.spec import AuditSpec, Glance
from shoal.data.assignment import Indices


@runtime_checkable
class Pulled(Protocol):
    """A trainer that can say where samples pull the model."""

    def losses(self, indices: Indices) -> torch.Tensor: ...

    def pull(self, indices: Indices) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The samples of one claim, by their places in it."""

    author: str
    count: int
    at: Callable[[Sequence[int]], Indices]


def looking(
    trainer: Pulled,
    spec: AuditSpec,
    claims: Sequence[Assigned],
    earlier: Sequence[torch.Tensor],
    row: Callable[[torch.Tensor], torch.Tensor],
    seed: str,
) -> Looking:
    """Looks from where the trainer stands now. `row` makes of a vector what is compared with updates."""
    glances = spec.glances(max(claim.count for claim in claims), len(claims))
    drawn_before = list(accumulate((one.drawn for _, one in glances), initial=0))

    def look(place: int, rung: int) -> torch.Tensor:
        return row(trainer.pull(hardest(trainer, claims[place], glances[rung][1], drawn_before[rung], seed)))

    return Looking(look, earlier, [Rung(count, one.cost) for count, one in glances], seed)


def hardest(trainer: Pulled, claim: Assigned, size: Glance, first: int, seed: str) -> Indices:
    """Those of some drawn samples that have the greatest loss; `first` were drawn for looks before."""
    drawn = claim.at([_place(seed, claim, first + which) for which in range(size.drawn)])
    losses = trainer.losses(drawn)
    chosen = losses.argsort(descending=True, stable=True)[: size.hardest].cpu().numpy()
    found: Indices = drawn[np.sort(chosen)]
    return found


def _place(seed: str, claim: Assigned, which: int) -> int:
    """Any place may be drawn, early ones more often: by momentum, what was seen first moves an update most."""
    return min(number(seed, "sample", claim.author, which, draw) % claim.count for draw in range(2))
