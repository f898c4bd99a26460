"""A screener's looks at the claims of a seal: which of its assigned samples, and what they add to a step.

In flow a trainer, the state that the claims began from and their assignments; out flow rows as long as the updates'.
Invariant: nothing but the losses and pulls of samples that the log assigned is computed, and no more of them than the
recipe pays for; samples are drawn by a seed that nobody knew when the claims were made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, runtime_checkable

import torch

from shoal.audit.effects import Looking, Rung
from shoal.audit.selection import number
from shoal.audit.spec import AuditSpec, Glance
from shoal.data.assignment import Indices


@runtime_checkable
class Pulled(Protocol):
    """A trainer that can say where samples pull the model."""

    def losses(self, indices: Indices) -> torch.Tensor: ...

    def pull(self, indices: Indices, weights: torch.Tensor) -> torch.Tensor: ...

    def lasting(self, later: int) -> float: ...


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
    earlier: Iterable[torch.Tensor],
    row: Callable[[torch.Tensor], torch.Tensor],
    seed: str,
) -> Looking:
    """Looks from where the trainer stands now. `row` makes of a vector what is compared with updates."""
    glances = spec.glances(max(claim.count for claim in claims), len(claims))
    drawn_before = list(accumulate((one.drawn for _, one in glances), initial=0))

    def look(place: int, rung: int) -> torch.Tensor:
        return row(trainer.pull(*telling(trainer, claims[place], glances[rung][1], drawn_before[rung], seed)))

    return Looking(look, earlier, [Rung(count, one.cost) for count, one in glances], seed)


def telling(
    trainer: Pulled, claim: Assigned, size: Glance, first: int, seed: str
) -> tuple[Indices, torch.Tensor]:
    """Those of some drawn samples that should have moved the model most, and what each counts for: by momentum, what
    was seen first moves an update most, and hard samples move it more than others. `first` were drawn for looks before.
    """
    places = [_place(seed, claim, first + which) for which in range(size.drawn)]
    drawn = claim.at(places)
    weights = torch.tensor([trainer.lasting(claim.count - 1 - place) for place in places])
    moved = trainer.losses(drawn).cpu() * weights
    chosen = moved.argsort(descending=True, stable=True)[: size.hardest].sort().values
    return drawn[chosen.numpy()], weights[chosen]


def _place(seed: str, claim: Assigned, which: int) -> int:
    """Any place may be drawn, early ones more often: they tell more."""
    return min(number(seed, "sample", claim.author, which, draw) % claim.count for draw in range(2))
