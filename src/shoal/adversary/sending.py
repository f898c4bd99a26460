"""Attackers that send something else than what they trained. Each is named by what it does to a plain mean."""

from __future__ import annotations

import torch

from shoal.adversary.base import Seen


class SignFlip:
    """The opposite of what it trained, as far the other way."""

    def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
        return -honest


class Scaling:
    """What it trained, ten times over: it wants to lead."""

    factor = 10.0

    def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
        return honest * self.factor


class Noise:
    """Gaussian noise, each value ten times as large as an honest one typically is."""

    factor = 10.0

    def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
        size = honest.square().mean().sqrt() * self.factor
        return torch.randn(honest.shape, generator=seen.random()) * size


class Zeros:
    """Nothing: it takes the credit for work that it did not do."""

    def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
        return torch.zeros_like(honest)


class StaleReplay:
    """Its first update, again and again."""

    def __init__(self) -> None:
        self._first: torch.Tensor | None = None

    def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
        if self._first is None:
            self._first = honest.clone()
        return self._first


class Copy:
    """Free-riding: another node's update of the same round, with a little noise over it, each round another's."""

    noise = 0.01

    def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
        copied = seen.others[(seen.member + seen.round) % len(seen.others)]
        size = copied.square().mean().sqrt() * self.noise
        return copied + torch.randn(copied.shape, generator=seen.random()) * size


class PoisonedFeedback:
    """Trains honestly, and lies in its error feedback: what its codec left out comes later the other way round, and
    three times as large."""

    factor = 3.0

    def __init__(self) -> None:
        self._kept: torch.Tensor | None = None
        """What its codec has left out so far, which it adds to the next update."""
        self._wanted: torch.Tensor | None = None

    def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
        if self._wanted is not None and seen.sent is not None:
            before = 0.0 if self._kept is None else self._kept
            self._kept = before + self._wanted - seen.sent
        # The codec's own feedback adds what was left out once; taken away once more, it comes out reversed.
        self._wanted = honest if self._kept is None else honest - (1 + self.factor) * self._kept
        return self._wanted
