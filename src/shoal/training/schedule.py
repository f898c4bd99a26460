"""The learning rate's course over the run.

In flows the global step number; out flows a factor on the recipe's rates. Invariant: it depends on the step
number alone, so a late joiner is on schedule at once.
"""

from __future__ import annotations

import math

from shoal.training.spec import AdamWSpec, MuonSpec, SgdSpec


def rate_factor(inner: SgdSpec | AdamWSpec | MuonSpec, step_number: int) -> float:
    """The factor for step `step_number`, counted from 0: a linear rise, then the schedule down to `floor`."""
    if step_number < inner.warmup_steps:
        return (step_number + 1) / inner.warmup_steps
    if inner.schedule == "constant" or inner.total_steps is None:
        return 1.0
    length = max(1, inner.total_steps - inner.warmup_steps)
    progress = min(1.0, (step_number - inner.warmup_steps) / length)
    left = 0.5 * (1 + math.cos(math.pi * progress)) if inner.schedule == "cosine" else 1 - progress
    return inner.floor + (1 - inner.floor) * left
