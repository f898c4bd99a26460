"""A recipe on a fleet in the simulator, with its own model and data: what comes of it, as a curve.

In flow a fleet, a recipe and how long; out flows a `Curve`. Invariant: coordinator, nodes, log and fold are the
product's own, and every node really trains; only time, network and disks are simulated, so that the same seed gives the
same curve.
"""

from __future__ import annotations

import math

import torch

from shoal.apps.bench import calm
from shoal.apps.bench.converge.corpus import Corpus, read_corpus
from shoal.apps.compare_curves import Curve, CurveReader, Prices
from shoal.apps.simulated_fleet import FleetWorld
from shoal.base.errors import ShoalError
from shoal.data.manifest import Manifest
from shoal.lab.fleet import Fleet
from shoal.runlog.entries import Entry, Plan
from shoal.strategy.recipe import Recipe
from shoal.training.spec import OwnInnerSpec, OwnModelSpec
from shoal.training.trainer import TorchTrainer, Trainer
from shoal.worlds.simulated.loop import SimLoop, hush


def simulate(
    name: str,
    fleet: Fleet,
    recipe: Recipe,
    *,
    most_s: float = math.inf,
    until_loss: float = -math.inf,
    seed: int = 0,
    prices: Prices | None = None,
) -> Curve:
    """Train until the budget is spent, the time is over or the loss is as low as that. Raises what a node raises."""
    if isinstance(recipe.inner, OwnInnerSpec) or isinstance(recipe.model, OwnModelSpec):
        raise ShoalError(
            "SH-RECIPE-03", "a model of one's own is not trained here", "use a model by its kind"
        )
    hush()
    torch.set_num_threads(
        1
    )  # Small models gain nothing from more, and the curve's last digits would depend on them.
    loop = SimLoop(seed, event_budget=calm.NO_END)
    world = _TrainingWorld(
        loop, fleet, recipe, seed, read_corpus(recipe.data), until_loss, prices or Prices()
    )
    try:
        played = loop.run(world.play(most_s, lambda: 0.0))
    except BaseExceptionGroup as group:
        raise calm.innermost(group) from group
    return world.reader.curve(
        name, sent_bytes=played.sent_bytes, utilisation=world.utilisation(), ended=played.ended
    )


def trainer_of(recipe: Recipe, corpus: Corpus) -> TorchTrainer:
    """The recipe's model at its first values."""
    assert not isinstance(recipe.inner, OwnInnerSpec)
    return TorchTrainer(
        recipe.model,
        recipe.inner,
        corpus.manifest,
        corpus.dataset,
        recipe.seed,
        torch.device("cpu"),
        fragments=recipe.strategy.schedule.fragments,
    )


class _TrainingWorld(FleetWorld):
    """A fleet whose nodes train the recipe's own model."""

    def __init__(
        self,
        loop: SimLoop,
        fleet: Fleet,
        recipe: Recipe,
        seed: int,
        corpus: Corpus,
        until_loss: float,
        prices: Prices,
    ) -> None:
        self._corpus = corpus
        self._until_loss = until_loss
        self._first: tuple[float, float] | None = None
        """When the first plan was made, and how long devices had trained by then."""
        super().__init__(loop, fleet, recipe, 0, seed)
        speeds = sum(line.speed for line in self._lines)
        first_loss = self._trainer().evaluate(recipe.evaluation.batches)
        self.reader = CurveReader(speeds=speeds, prices=prices, first_loss=first_loss)

    def utilisation(self) -> float:
        """Of all devices' time since the first plan, the share in which they trained."""
        nodes, (began, busy_s) = len(self._lines), self._first or (0.0, 0.0)
        passed_s = max(self._loop.time() - began, 1e-9)
        return min(1.0, (sum(self._busy_s.values()) - busy_s) / (nodes * passed_s))

    def _has_enough(self) -> bool:
        return self.reader.loss <= self._until_loss

    def _manifest(self) -> Manifest:
        return self._corpus.manifest

    def _trainer(self) -> Trainer:
        return trainer_of(self._recipe, self._corpus)

    def _appended(self, entry: Entry) -> None:
        super()._appended(entry)
        if isinstance(entry.body, Plan) and self._first is None:
            self._first = (self._loop.time(), sum(self._busy_s.values()))
        self.reader.take(entry, self._network.sent_bytes)
