"""How a local model takes a new global version in mid-training.

In flow the local parameters, those at the last claim, and the new global ones; out flow the new local
parameters and the anchor from which the next pseudo-gradient is measured. Invariant: the next update is
`anchor - local`, so it counts what this node trained and nothing that it merged.

To add a rule: a class like these and one line in `MERGE_RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Merged:
    local: torch.Tensor
    anchor: torch.Tensor


class MergeRule(Protocol):
    keeps_progress: bool
    """True if steps trained since the last claim survive the merge."""

    def merge(self, local: torch.Tensor, claimed: torch.Tensor, new: torch.Tensor) -> Merged: ...


class Replace:
    """Start again from the global version."""

    keeps_progress = False

    def merge(self, local: torch.Tensor, claimed: torch.Tensor, new: torch.Tensor) -> Merged:
        return Merged(new.clone(), new)


class Mix:
    """Move a share `alpha` of the way to the global version; 1 takes it whole, plus the local progress."""

    keeps_progress = True

    def __init__(self, alpha: float = 0.5) -> None:
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha must be above 0 and at most 1, not {alpha}")
        self._alpha = alpha

    def merge(self, local: torch.Tensor, claimed: torch.Tensor, new: torch.Tensor) -> Merged:
        progress = local - claimed
        mixed = claimed + (new - claimed) * self._alpha
        return Merged(mixed + progress, mixed)


MERGE_RULES: dict[str, Callable[..., MergeRule]] = {"replace": Replace, "mix": Mix}
