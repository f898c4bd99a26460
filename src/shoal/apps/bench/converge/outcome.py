"""What came of a training, by nodes or by one process, and how the two are compared.

In flow losses and counted bytes; out flow the fields that `shoal bench converge --json` prints. Invariant: every
engine fills in the same value, so that a row means the same whichever engine made it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A fleet's training. Bytes of updates are those of their blobs; wire bytes are the transport's."""

    loss: float
    """Validation loss of the final global state."""
    params: int
    steps: float
    """Inner steps that reached the global state, by worker."""
    tokens: int
    rounds: int
    """Seals."""
    sent_bytes: float
    """Updates that one worker made, each counted once."""
    received_bytes: float
    """Updates that one worker took in."""
    wire_bytes: int
    """Everything that everybody sent."""
    wire_update_bytes: int = 0
    """Of these, pieces of updates."""
    wire_state_bytes: int = 0
    """Of these, pieces of saved states; the rest is control traffic."""
    far_bytes: float = 0.0
    """Of what one worker sent and received, by its share, what went between regions."""
    stated_update_bytes: int = 0
    """What the updates take by the codec's own statement, once for everyone who had to get them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A fleet's training beside its synchronous twin's."""

    preset: str
    inner: str
    workers: int
    seed: int
    outcome: Outcome
    sync_loss: float
    seconds: float

    @property
    def gap(self) -> float:
        """Not a number where fleet or twin diverged: there is nothing to compare then."""
        finite = math.isfinite(self.outcome.loss) and math.isfinite(self.sync_loss)
        return self.outcome.loss / self.sync_loss - 1 if finite else math.nan

    @property
    def bits_per_param_step(self) -> float:
        return self._bits(self.outcome.sent_bytes)

    @property
    def received_bits_per_param_step(self) -> float:
        return self._bits(self.outcome.received_bytes)

    def _bits(self, count_bytes: float) -> float:
        return 8 * count_bytes / self.outcome.params / max(1.0, self.outcome.steps)

    def fields(self) -> dict[str, Any]:
        """The row as JSON has it, which has no word for what is not finite: null."""
        done = self.outcome
        control = done.wire_bytes - done.wire_update_bytes - done.wire_state_bytes
        stated = done.stated_update_bytes
        return {
            "preset": self.preset,
            "inner": self.inner,
            "workers": self.workers,
            "seed": self.seed,
            "steps": round(done.steps, 2),
            "params": done.params,
            "tokens": done.tokens,
            "rounds": done.rounds,
            "loss": _rounded(done.loss),
            "sync_loss": _rounded(self.sync_loss),
            "gap": _rounded(self.gap),
            "bits_per_param_step": float(f"{self.bits_per_param_step:.5g}"),
            "received_bits_per_param_step": float(f"{self.received_bits_per_param_step:.5g}"),
            "far_bits_per_param_step": float(f"{self._bits(done.far_bytes):.5g}"),
            "wire_bytes": done.wire_bytes,
            "wire_update_bytes": done.wire_update_bytes,
            "wire_state_bytes": done.wire_state_bytes,
            "wire_control_bytes": control,
            "stated_update_bytes": stated,
            "wire_to_stated": round(done.wire_update_bytes / stated, 5) if stated else None,
            "seconds": round(self.seconds, 1),
        }


def _rounded(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None
