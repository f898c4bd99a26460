"""How a local model takes a new global version, and what of it goes into an update.

In flow the local parameters, the anchor from which the next pseudo-gradient is measured, the global version that
the local model knows and the new one; out flow new local parameters and a new anchor. Invariant: an update counts
what this node trained since its last one, and nothing that it merged. (Where nodes meet in pairs, it is the whole way
from the last common state, so that anybody can rebuild its author's model from it.)

To add a rule: a class like these and one line in `MERGE_RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from shoal.base.vectors import like

MOST_PAIR_ROUNDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """One fragment of the local model. What was trained since the last update is `local - anchor`."""

    local: torch.Tensor
    anchor: torch.Tensor
    known: torch.Tensor
    """The global version that was merged last."""
    pending: bool = False
    """True while an update of this node is on its way: made, but not in the global version yet."""


@dataclass(frozen=True, slots=True)
class Merged:
    local: torch.Tensor
    anchor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Made:
    """An update before it is encoded, and the local model after it."""

    update: torch.Tensor
    local: torch.Tensor


class MergeRule(Protocol):
    keeps_progress: bool
    """True if steps trained since the last claim survive the merge. Only then are new versions taken in the middle
    of an assignment; otherwise they wait for its end."""
    global_every: int
    """Every so many seals move the state; in those between them nodes meet in pairs."""

    def merge(self, here: Here, new: torch.Tensor) -> Merged: ...

    def make(self, here: Here) -> Made:
        """The update to send. The anchor is then where the local model is."""


class Replace:
    """Start again from the global version."""

    keeps_progress = False
    global_every = 1

    def merge(self, here: Here, new: torch.Tensor) -> Merged:
        return Merged(new, new)

    def make(self, here: Here) -> Made:
        return _progress(here)


class Mix:
    """Move a share `alpha` of the way to the global version; 1 takes it whole, plus the local progress."""

    keeps_progress = True
    global_every = 1

    def __init__(self, alpha: float = 0.5) -> None:
        self._alpha = _share(alpha)

    def merge(self, here: Here, new: torch.Tensor) -> Merged:
        progress = here.local - here.anchor
        mixed = here.anchor + (new - here.anchor) * self._alpha
        return Merged(mixed + progress, mixed)

    def make(self, here: Here) -> Made:
        return _progress(here)


class AddDelta:
    """Add what the global version has changed by, to the local model and to the anchor alike. What was sent stays
    in the local model until it is settled; from then on it is in the global version."""

    keeps_progress = True
    global_every = 1

    def merge(self, here: Here, new: torch.Tensor) -> Merged:
        if here.pending:
            delta = new - here.known
            return Merged(here.local + delta, here.anchor + delta)
        return Merged(new + (here.local - here.anchor), new)

    def make(self, here: Here) -> Made:
        return _progress(here)


class Elastic:
    """A spring of strength `alpha` between local model and global version: what the one gives, the other is sent,
    so that their sum changes by training only. The local model is never replaced."""

    keeps_progress = True
    global_every = 1

    def __init__(self, alpha: float = 0.5) -> None:
        self._alpha = _share(alpha)

    def merge(self, here: Here, new: torch.Tensor) -> Merged:
        return Merged(here.local, here.anchor)

    def make(self, here: Here) -> Made:
        pull = (here.known - here.local) * self._alpha
        return Made(pull, here.local + pull)


class Pairs:
    """Nodes meet two by two and each goes a share `alpha` of the way to the other's model; every `global_every`-th
    round they all take the common one instead."""

    keeps_progress = True

    def __init__(self, global_every: int = 4, alpha: float = 0.5) -> None:
        if not 1 <= global_every <= MOST_PAIR_ROUNDS:
            raise ValueError(f"global_every must be 1 to {MOST_PAIR_ROUNDS}, not {global_every}")
        self.global_every = global_every
        self._mix = Mix(alpha)

    def merge(self, here: Here, new: torch.Tensor) -> Merged:
        return Merged(new + (here.local - here.anchor), new)

    def make(self, here: Here) -> Made:
        return Made(here.known - here.local, here.local)

    def meet(self, here: Here, theirs: torch.Tensor) -> Merged:
        """Towards the partner's model as it was when it made its update, from this node's own at that time."""
        return self._mix.merge(here, theirs)


def _progress(here: Here) -> Made:
    return Made(torch.sub(here.anchor, here.local, out=like(here.local)), here.local)


def _share(alpha: float) -> float:
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha must be above 0 and at most 1, not {alpha}")
    return float(alpha)


MERGE_RULES: dict[str, Callable[..., MergeRule]] = {
    "add-delta": AddDelta,
    "elastic": Elastic,
    "mix": Mix,
    "pairs": Pairs,
    "replace": Replace,
}
