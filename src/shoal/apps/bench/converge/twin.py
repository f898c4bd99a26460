"""The synchronous twin: one process that takes the mean gradient of all workers' samples at every step.

In flows a setup; out flows its validation loss. Invariant: it sees the samples that the fleet's assignments are cut
from, as many a step as the whole fleet, under the same inner optimiser and schedule; it knows nothing of the strategy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from shoal.apps.bench.converge.fleet import StackedFleet
from shoal.apps.bench.converge.setup import Inner, Say, Setup
from shoal.apps.progress import tracked
from shoal.data.assignment import Indices, sample_indices
from shoal.training.spec import GptSpec
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
    inner, told = setup.twin_inner, time.monotonic()
    step_of, evaluate = _learner(setup, inner)
    each, items = setup.workers * inner.batch_size, setup.corpus.manifest.train_items
    for step in tracked(range(setup.steps), "steps"):
        loss = step_of(sample_indices(setup.seed, step * each, each, items), step)
        if time.monotonic() - told > SAY_EVERY_S:
            told = time.monotonic()
            say(f"synchronous {inner.kind}: step {step + 1} of {setup.steps}, loss {float(loss):.3f}")
    validation = evaluate()
    say(f"synchronous {inner.kind}: validation loss {validation:.4f}")
    return validation if math.isfinite(validation) else math.inf


Step = Callable[[Indices, int], torch.Tensor | float]


def _learner(setup: Setup, inner: Inner) -> tuple[Step, Callable[[], float]]:
    """How to take a step on samples, and how to validate. On a GPU a GPT is a fleet of one, which is compiled and does
    not wait for its losses."""
    corpus, model, batches = setup.corpus, setup.recipe.model, setup.recipe.evaluation.batches
    if setup.device.type == "cuda" and isinstance(model, GptSpec):
        fleet = StackedFleet(
            model, inner, corpus.manifest, corpus.dataset, setup.seed, setup.device, workers=1
        )
        return (
            lambda indices, step: fleet.step([indices], step)[0],
            lambda: fleet.evaluate(fleet.params[0], batches, inner.batch_size),
        )
    trainer = make_trainer(setup, inner=inner)
    return lambda indices, step: trainer.step(indices, step).loss, lambda: trainer.evaluate(batches)
