"""What an attacker is: it may change what it sends, and what it trains on.

In flow its own honest update and whatever it could know; out flows what it sends instead. Invariant: an attacker has
all its randomness from the seed that it is shown, so that an attack is repeated by its seed.

To write one, in any package: a class that can be made without arguments and has `corrupt`, `poison` or both. It is
named `module:Class` on a command line. One object is made for each attacker, and kept for the whole run. What it gives
back goes through `lie_of` and `taught`: a fault in somebody's own attack is told as that.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import blake3
import torch

from shoal.base.errors import ShoalError
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


def lie_of(attacker: Adversary, honest: torch.Tensor, seen: Seen) -> torch.Tensor:
    """What it sends, in the form of an update. Raises SH-ATTACK-02."""
    with _own_code(attacker, "corrupt"):
        lie = attacker.corrupt(honest, seen)
    if not isinstance(lie, torch.Tensor) or lie.shape != honest.shape or lie.is_complex():
        raise _fault(attacker, "corrupt", f"gave {_form(lie)} instead of {_form(honest)}")
    return lie.to(honest.dtype)


def taught(attacker: Poisoner, batch: Batch, classes: int) -> Batch:
    """What it trains on, in the form of a batch. Raises SH-ATTACK-02."""
    with _own_code(attacker, "poison"):
        inputs, targets = attacker.poison(batch, classes)
    for part, found, wanted in (("inputs", inputs, batch.inputs), ("targets", targets, batch.targets)):
        if not isinstance(found, torch.Tensor) or found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise _fault(
                attacker, "poison", f"gave {part} that are {_form(found)} instead of {_form(wanted)}"
            )
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        raise _fault(attacker, "poison", f"gave targets beyond 0 to {classes - 1}")
    return Batch(inputs, targets)


@contextmanager
def _own_code(attacker: object, method: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Somebody's own code, which may fail in any way.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}, line {place.lineno}"
        raise _fault(attacker, method, f"failed: {type(error).__name__}: {error} ({where})") from error


def _fault(attacker: object, method: str, what: str) -> ShoalError:
    return ShoalError(
        "SH-ATTACK-02",
        f"{type(attacker).__name__}.{method} {what}",
        "correct the attack; docs/strangers.md says what it is given and gives back",
    )


def _form(found: object) -> str:
    if isinstance(found, torch.Tensor):
        return f"a tensor of {str(found.dtype).removeprefix('torch.')} {list(found.shape)}"
    return f"{type(found).__name__}"
