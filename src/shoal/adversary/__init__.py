"""Attackers, for simulations and benchmarks. `ATTACKS` names those of this package; others are `module:Class`."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from shoal.adversary.base import Adversary, Backdoor, Poisoner, Seen, lie_of, taught
from shoal.adversary.colluding import ALittleIsEnough, Collusion, InnerProduct, Mimic
from shoal.adversary.poisoning import CornerTrigger, LabelFlip
from shoal.adversary.sending import Copy, Noise, PoisonedFeedback, Scaling, SignFlip, StaleReplay, Zeros
from shoal.base.errors import ShoalError

Attacker = Adversary | Poisoner

ATTACKS: dict[str, Callable[[], Attacker]] = {
    "sign-flip": SignFlip,
    "scaling": Scaling,
    "noise": Noise,
    "zeros": Zeros,
    "stale-replay": StaleReplay,
    "label-flip": LabelFlip,
    "alie": ALittleIsEnough,
    "ipm": InnerProduct,
    "mimic": Mimic,
    "copy": Copy,
    "collusion": Collusion,
    "poisoned-feedback": PoisonedFeedback,
    "backdoor": CornerTrigger,
}


def find_attack(name: str) -> Callable[[], Attacker]:
    """What makes attackers of this name, or of `module:Class`, which is imported and so runs its code. Raises
    SH-ATTACK-01."""
    if name in ATTACKS:
        return ATTACKS[name]
    module, colon, inside = name.partition(":")
    if not colon:
        raise _unknown(f"found {name!r}")
    try:
        found = getattr(importlib.import_module(module), inside)
        made = found()
    except Exception as error:  # Somebody's own code, which may fail in any way.
        raise _unknown(f"{name} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, Adversary | Poisoner):
        raise _unknown(f"{name} has neither corrupt(honest, seen) nor poison(batch, classes)")
    make: Callable[[], Attacker] = found
    return make


def _unknown(cause: str) -> ShoalError:
    return ShoalError(
        "SH-ATTACK-01",
        cause,
        f"allowed: {', '.join(sorted(ATTACKS))}, or module:Class; see docs/strangers.md",
    )


__all__ = [
    "ATTACKS",
    "Adversary",
    "Attacker",
    "Backdoor",
    "Poisoner",
    "Seen",
    "find_attack",
    "lie_of",
    "taught",
]
