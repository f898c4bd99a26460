"""What was trained since the last claim, and which claims are not settled yet.

In flow steps, merges and claims; out flow the figures of the next claim. Invariant: every sample that entered the
local model since the last claim is in `Progress.data`, once, in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from shoal.base.ids import BlobId
from shoal.runlog.entries import Claim, DataRange, MergeTaken


@dataclass(slots=True)
class Progress:
    """What was trained since the last claim."""

    steps: int = 0
    samples: int = 0
    tokens: int = 0
    loss_sum: float = 0.0
    last_loss: float = 0.0
    data: list[DataRange] | None = None
    merges: list[MergeTaken] = field(default_factory=list)

    def add(self, loss: float, samples: int, tokens: int, start: int, *, begins: bool) -> None:
        """Count a step. `begins` for an assignment's first: ranges of two assignments are never joined, though
        they may touch."""
        self.steps += 1
        self.samples += samples
        self.tokens += tokens
        self.loss_sum += loss
        self.last_loss = loss
        ranges = self.data = self.data or []
        if ranges and not begins and ranges[-1].start + ranges[-1].count == start:
            ranges[-1] = DataRange(ranges[-1].start, ranges[-1].count + samples)
        else:
            ranges.append(DataRange(start, samples))

    def merged(self, position: int) -> None:
        """A global version entered the local model after what was trained so far."""
        if self.steps:
            self.merges.append(MergeTaken(position, self.steps))


class Unsettled(msgspec.Struct, frozen=True):
    """A claim of this node of which the log does not say yet what became of it."""

    sequence: int
    plan: int
    blob: BlobId
    fragments: tuple[int, ...]
    place: int = 0
    """How many seals stood when its work was planned, which decides its codec."""
    shards: int = 0
    """Into about how many shards it was cut; 0 for whole fragments."""
    codec: int = 0
    """By which of the recipe's codecs, see `Assignment.codec`."""

    @staticmethod
    def of(claim: Claim) -> Unsettled:
        fragments = tuple(fragment for fragment, _ in claim.base)
        return Unsettled(claim.sequence, claim.plan, claim.blob, fragments)
