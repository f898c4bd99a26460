"""The recipe's `audit:` section: how much of the work is done twice, and what follows from it.

In flows what a person wrote; out flows a checked, frozen value. Invariant: with `rate` 0 nobody audits anything, and
a run is as if this package were not there.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

MICRO = 1_000_000
SCREENING_SHARE = 0.4
"""Of the extra work, what goes into looking at every claim a little; the rest re-runs a few of them."""


class AuditSpec(BaseModel):
    """Which claims are run again by others. They are drawn by a hash that nobody knew when they were made, and by how
    odd an update is, how new its author, and what became of earlier audits."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    rate: float = Field(default=0.0, ge=0.0, le=1.0)
    """Extra compute for audits, as a share of the training. 0 switches them off; 0.05 is a good value among
    strangers."""
    tolerance: float = Field(default=0.3, gt=0.0, le=2.0)
    """How far a re-run may be from the claimed update, as a share of its length. Honest hardware stays far below."""
    jury: int = Field(default=2, ge=0, le=8)
    """How many more re-run a claim after the first accusation; a majority of all convicts."""
    ban_s: float = Field(default=86_400.0, gt=0, le=1e9)
    """How long a member whose standing is used up loses its seat; the n-th time n times as long."""

    @property
    def on(self) -> bool:
        return self.rate > 0

    @property
    def replays_micro(self) -> int:
        """Claims re-run, in millionths of all."""
        return round(self.rate * (1 - SCREENING_SHARE) * MICRO)

    def samples_screened(self, samples: int) -> int:
        """Of a claim's samples, on how many its update is looked at."""
        return max(1, round(self.rate * SCREENING_SHARE * samples))
