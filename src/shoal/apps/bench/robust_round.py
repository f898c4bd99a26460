"""The round that a fold is a part of: a node's local steps on a GPT of as many parameters, on this machine.

In flows how many parameters; out flow how many steps the default preset takes a round, and how long one takes here.
Invariant: model, batch and schedule are those of `shoal bench converge`; what updates need to travel is left out, so
that a round is rather too short than too long.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from shoal.apps.bench.converge.setup import Question, make_setup
from shoal.apps.bench.converge.twin import make_trainer
from shoal.apps.progress import tracked
from shoal.data.assignment import sample_indices

LAYERS, HEAD_WIDTH, PER_LAYER = 12, 64, 12
"""A layer has 12 times its width squared."""
TIMED_STEPS, LONG_S = 2, 20.0
"""A step that takes so long is timed once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSteps:
    params: int
    steps: int
    step_s: float

    @property
    def seconds(self) -> float:
        return self.steps * self.step_s


def local_steps_of(params: int) -> LocalSteps:
    """Train a few steps; the quickest counts."""
    heads = max(1, round(math.sqrt(params / (LAYERS * PER_LAYER)) / HEAD_WIDTH))
    model = (f"model.layers={LAYERS}", f"model.width={heads * HEAD_WIDTH}", f"model.heads={heads}")
    setup = make_setup("auto", Question(settings=model))
    trainer, batch = make_trainer(setup), setup.inner.batch_size
    times: list[float] = []
    for step in tracked(range(TIMED_STEPS), "steps"):
        if times and times[0] > LONG_S:
            break
        indices = sample_indices(setup.seed, step * batch, batch, setup.corpus.manifest.train_items)
        began = time.perf_counter()
        trainer.step(indices, step)
        times.append(time.perf_counter() - began)
    steps = setup.recipe.strategy.schedule.steps
    return LocalSteps(params=trainer.layout.numel, steps=steps, step_s=min(times))
