"""Presets whose outer optimiser takes the real step, and whose inner one hands it gradients.

In flow a preset and the size of the question; out flow the outer settings that suit it, and the twin's optimiser.
Invariant: what elsewhere is said of the inner optimiser (rate, warm-up, schedule) is said of the outer one here, and
the twin of an outer Adam is an inner one with the same settings.
"""

from __future__ import annotations

import inspect
from typing import Any

from shoal.aggregate import OUTER_OPTIMIZERS
from shoal.strategy.pieces import OuterPiece
from shoal.strategy.presets import PRESETS
from shoal.training.spec import AdamWSpec

FROZEN_SHARE = 4
"""One round in so many, at the beginning, is for learning a variance that is then kept."""


def is_outside(preset: str) -> bool:
    return PRESETS[preset]["outer"]["kind"] in ("adam", "onebit-adam", "sign")


def outer_settings(preset: str, rate: float, rounds: int, warmup_rounds: int) -> dict[str, Any]:
    """The preset's strategy section for a run of so many rounds."""
    row = PRESETS[preset]
    outer: dict[str, Any] = {"lr": rate, "warmup_rounds": warmup_rounds, "decay": "cosine"}
    section: dict[str, Any] = {"preset": preset, "outer": outer}
    if "freeze_after" in row["outer"]:
        learnt = max(1, rounds // FROZEN_SHARE)
        outer["freeze_after"] = learnt
        section["codec"] = {"warmup_rounds": learnt}
    return section


def twin_of(outer: OuterPiece, usual: AdamWSpec) -> AdamWSpec:
    """The optimiser that takes the outer one's steps in one process. Signs have the usual Adam beside them. (An inner
    Adam decays matrices alone, an outer one everything.)"""
    if outer.kind == "sign":
        return usual
    parameters = inspect.signature(OUTER_OPTIMIZERS[outer.kind]).parameters.values()
    settings = {**{p.name: p.default for p in parameters}, **outer.params()}
    return usual.model_copy(
        update={
            "lr": settings["lr"],
            "betas": (settings["beta1"], settings["beta2"]),
            "eps": settings["eps"],
            "weight_decay": settings["weight_decay"],
            "warmup_steps": outer.warmup_rounds,
            "schedule": "constant" if outer.decay == "none" else outer.decay,
            "floor": outer.floor,
        }
    )
