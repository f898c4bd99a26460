"""What an attacker is: it may change what it sends, and what it trains on.

In flow its own honest update and whatever it could know; out flows what it sends instead. Invariant: an attacker has
all its randomness from the seed that it is shown, so that an attack is repeated by its seed.

To write one, in any package: a class that can be made without arguments and has `corrupt`, `poison` or both. It is
named `module:Class` on a command line. One object is made for each attacker, and kept for the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import blake3
import torch

from shoal.data.dataset import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an attacker knows when it sends: in the worst case, everything. Tensors are flat float32, and read only."""

    round: int
    nodes: int
    attackers: int
    member: int
    """Which of the attackers this is, from 0."""
    others: Sequence[torch.Tensor]
    """What honest nodes send in this round, before their codec."""
    allies: Sequence[torch.Tensor]
    """What each attacker would send if it were honest, itself among them."""
    sent: torch.Tensor | None
    """What became of this node's last update in its codec; None before the first."""
    seed: int
    """Of the attack; the same for all attackers and all rounds."""

    def random(self, *, shared: bool = False) -> torch.Generator:
        """Numbers for this round: this attacker's own, or the same for all of them."""
        whose = "all" if shared else str(self.member)
        text = f"shoal/attack/{self.seed}/{self.round}/{whose}".encode()
        return torch.Generator().manual_seed(int.from_bytes(blake3.blake3(text).digest(length=7), "little"))


@runtime_checkable
class Adversary(Protocol):
    """An attacker that changes what it sends."""

    def corrupt(self, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
        """What goes to the codec instead of this node's honest update, which points from the trained parameters back
        to the base. Whatever the codec refuses is not sent at all."""


@runtime_checkable
class Poisoner(Protocol):
    """An attacker that changes what it trains on."""

    def poison(self, batch: Batch, classes: int) -> Batch:
        """What it trains on instead of a batch, whose targets are of so many classes (for text, of so many tokens).
        The batch itself must stay as it is."""


@runtime_checkable
class Backdoor(Poisoner, Protocol):
    """A poisoner that wants a trigger to be answered its way."""

    target: int

    def trigger(self, inputs: torch.Tensor) -> torch.Tensor:
        """The inputs with the trigger in them."""
