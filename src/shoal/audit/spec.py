"""The recipe's `audit:` section: how much of the work is done twice, and what follows from it.

In flows what a person wrote; out flows a checked, frozen value. Invariant: with `rate` 0 nobody audits anything, and
a run is as if this package were not there.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from shoal.base.section import Section

MICRO = 1_000_000
LOOKS = ((1.0, 0.31), (0.3, 0.15), (0.1, 0.15))
"""Looks at the claims of a seal: at which share of them, the most doubtful ones, and for which share of the extra work.
The rest of it re-runs a few."""
_FORWARD = 1 / 3
"""What a sample costs forward only, where 1 is forward and backward."""


@dataclass(frozen=True, slots=True)
class Glance:
    """A look at a claim: the losses of `drawn` samples, and what the `hardest` of them add to a step. In late training
    a few hard samples are most of what an update is made of, and losses cost a third."""

    drawn: int
    hardest: int

    @property
    def cost(self) -> float:
        """In samples trained."""
        return self.drawn * _FORWARD + self.hardest


def glance(worth: float, samples: int) -> Glance:
    """A look at a claim of so many samples for the price of `worth` of them."""
    hardest = max(1, round(0.4 * worth))
    drawn = max(hardest, round((worth - hardest) / _FORWARD))
    return Glance(min(drawn, max(1, samples)), min(hardest, max(1, samples)))


class AuditSpec(Section):
    """Which claims are run again by others. They are drawn by a hash that nobody knew when they were made, and by how
    odd an update is, how new its author, and what became of earlier audits."""

    rate: float = Field(default=0.0, ge=0.0, le=1.0)
    """Extra compute for audits, as a share of the training. 0 switches them off; 0.05 is a good value among
    strangers."""
    tolerance: float = Field(default=0.3, gt=0.0, le=2.0)
    """How far a re-run may be from the claimed update, as a share of its length. Honest hardware stays far below."""
    jury: int = Field(default=2, ge=0, le=8)
    """How many more re-run a claim after the first accusation; a majority of all convicts, and never one word alone, so
    that a run needs 1 at least."""
    ban_s: float = Field(default=86_400.0, gt=0, le=1e9)
    """How long a member whose standing is used up loses its seat; the n-th time n times as long."""

    @property
    def on(self) -> bool:
        return self.rate > 0

    @property
    def replays_micro(self) -> int:
        """Claims re-run, in millionths of all."""
        return round(self.rate * (1 - sum(worth for _, worth in LOOKS)) * MICRO)

    def glances(self, samples: int, claims: int) -> tuple[tuple[int, Glance], ...]:
        """The looks at a seal of so many claims of so many samples each: at how many of them, and what each look is."""
        found = []
        for share, worth in LOOKS:
            count = max(1, round(share * claims))
            found.append((count, glance(self.rate * worth * samples * claims / count, samples)))
        return tuple(found)

    def looks_cost(self, samples: int, claims: int) -> float:
        """Of all looks at a seal, as a share of its training."""
        return sum(count * one.cost for count, one in self.glances(samples, claims)) / (samples * claims)
