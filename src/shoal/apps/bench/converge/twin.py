"""The synchronous twin: one process that takes the mean gradient of all workers' samples at every step.

In flows a setup; out flows its validation loss. Invariant: it sees the samples that the fleet's assignments are cut
from, as many a step as the whole fleet, under the same inner optimiser and schedule; it knows nothing of the strategy.
"""

from __future__ import annotations

import math
import time

import torch

from shoal.apps.bench.converge.setup import Inner, Say, Setup
from shoal.data.assignment import sample_indices
from shoal.training.trainer import TorchTrainer

SAY_EVERY_S = 5.0


def make_trainer(setup: Setup, fragments: int = 1, inner: Inner | None = None) -> TorchTrainer:
    """A trainer of the setup's model, at its first values."""
    corpus = setup.corpus
    return TorchTrainer(
        setup.recipe.model,
        inner or setup.inner,
        corpus.manifest,
        corpus.dataset,
        setup.seed,
        setup.device,
        fragments=fragments,
    )


def validate(setup: Setup, params: torch.Tensor) -> float:
    """The validation loss of these parameters, on the same samples for fleet and twin."""
    trainer = make_trainer(setup)
    trainer.load(params)
    return trainer.evaluate(setup.recipe.evaluation.batches)


class Twins:
    """Twins by what decides them: presets that differ in their strategy alone have the same one."""

    def __init__(self) -> None:
        self._losses: dict[str, float] = {}

    def loss(self, setup: Setup, say: Say) -> float:
        recipe = setup.recipe
        parts = (recipe.model, recipe.data, setup.twin_inner, recipe.evaluation)
        key = "/".join([*(part.model_dump_json() for part in parts), f"{setup.steps}/{setup.workers}"])
        key += f"/{setup.seed}/{setup.device}"
        if key not in self._losses:
            self._losses[key] = train_twin(setup, say)
        return self._losses[key]


def train_twin(setup: Setup, say: Say) -> float:
    """Train it; its validation loss. Raises SH-TRAIN-01 if it diverges."""
    inner = setup.twin_inner
    trainer, told = make_trainer(setup, inner=inner), time.monotonic()
    each, items = setup.workers * inner.batch_size, setup.corpus.manifest.train_items
    for step in range(setup.steps):
        result = trainer.step(sample_indices(setup.seed, step * each, each, items), step)
        if time.monotonic() - told > SAY_EVERY_S:
            told = time.monotonic()
            say(f"synchronous {inner.kind}: step {step + 1} of {setup.steps}, loss {result.loss:.3f}")
    loss = trainer.evaluate(setup.recipe.evaluation.batches)
    say(f"synchronous {inner.kind}: validation loss {loss:.4f}")
    return loss if math.isfinite(loss) else math.inf
