"""What an update counts for: the measures by which a plan may say that its claims are weighed.

In flow claims and the work they answer; out flow integers. Invariant: a measure is bounded by the work that was
assigned, whatever a claim says, so that neither a member nor the coordinator can make one update count for more.

To add a measure: a function like these and one line in `WEIGHTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.runlog.entries import Assignment, Claim

MAX_WEIGHT = 1 << 48
"""Sums of ten thousand of these still fit the integers that entries are written with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What was trained for one update."""

    samples: int
    tokens: int
    steps: int


def by_samples(work: Work) -> int:
    """The mean over samples."""
    return work.samples


def by_tokens_squared_per_step(work: Work) -> int:
    """More for more tokens, and more again for larger batches: a machine that takes few large steps is not
    drowned by one that takes many small ones."""
    return work.tokens * work.tokens // work.steps


WEIGHTS: dict[str, Callable[[Work], int]] = {
    "samples": by_samples,
    "tokens-squared-per-step": by_tokens_squared_per_step,
}


def weigh(measure: str, work: Work) -> int:
    return min(max(1, WEIGHTS[measure](work)), MAX_WEIGHT)


def claimed_work(claim: Claim, assignment: Assignment) -> Work:
    """What a claim says, cut to what its assignment has: carried samples count, but not beyond one assignment, and
    a step is at most one batch."""
    samples = min(claim.samples, assignment.data.count)
    tokens = claim.tokens * samples // claim.samples
    steps = max(claim.steps * samples // claim.samples, -(-samples // assignment.batch))
    return Work(samples=samples, tokens=tokens, steps=steps)


def whole_work(assignment: Assignment, tokens_a_sample: int, *, spare: bool = False) -> Work:
    """All of an assignment, with its spare steps or without."""
    steps = assignment.steps + (assignment.spare if spare else 0)
    samples = steps * assignment.batch
    return Work(samples=samples, tokens=samples * tokens_a_sample, steps=steps)
