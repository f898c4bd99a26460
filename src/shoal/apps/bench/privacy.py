"""A private run against the same run without privacy, on digits.

In flow epsilon, a fleet's size and a seed; out flow both accuracies and what each node spent. Invariant: both runs are
the product's own coordinator and nodes in the simulated world, from the same first state, with the same recipe but for
its `privacy` section; the samples that judge them were trained on by nobody.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import torch

from shoal.apps.bench import calm
from shoal.apps.bench.converge.corpus import Corpus, read_corpus
from shoal.apps.progress import tracked
from shoal.strategy.private import guarantee_of
from shoal.strategy.recipe import Recipe, parse_recipe
from shoal.training.spec import SgdSpec
from shoal.training.trainer import TorchTrainer

DELTA = 1e-5
STEPS = 2
SHARE = 2
"""One in so many of a node's samples is in a batch, on average."""
CALM = 0.007
"""Noise for each sample of a step, in clips, up to which the learning rate is 1."""
JUDGED = 1000
"""Batches of validation, at most: all there are."""


def measure(epsilon: float, nodes: int, seed: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Train both. Raises SH-PRIVACY-01 or -02."""
    corpus = read_corpus(recipe_for(None, nodes, seed, rounds, batch=8).data)
    batch = max(1, corpus.manifest.train_items // nodes // SHARE)
    guarantee = guarantee_of(recipe_for(epsilon, nodes, seed, rounds, batch), corpus.manifest.train_items)
    assert guarantee is not None
    rate = _rate(guarantee.noise, batch, nodes)
    plain = recipe_for(None, nodes, seed, rounds, batch, rate)
    private = recipe_for(epsilon, nodes, seed, rounds, batch, rate)
    say(f"{nodes} nodes, {rounds} rounds of {STEPS} steps on about {batch} of {guarantee.part_items} samples")
    say(f"epsilon {epsilon:g} at delta {DELTA:g} takes noise of {guarantee.noise:.3f} times the clip")
    (without, _), (accuracy, steps) = (
        _train(recipe, corpus, nodes, seed) for recipe in tracked((plain, private), "trainings")
    )
    spent = guarantee.epsilon(steps)
    say(f"without privacy: accuracy {without:.4f}")
    say(f"with epsilon {spent:.3f}: accuracy {accuracy:.4f}")
    return {
        "accuracy": accuracy,
        "accuracy_without": without,
        "gap": without - accuracy,
        "epsilon": spent,
        "epsilon_budget": epsilon,
        "delta": DELTA,
        "noise": guarantee.noise,
        "sampling_rate": guarantee.mechanism.rate,
        "clip": guarantee.spec.clip,
        "learning_rate": rate,
        "steps": steps,
        "nodes": nodes,
        "rounds": rounds,
        "seed": seed,
    }


def _rate(noise: float, batch: int, nodes: int) -> float:
    """The learning rate, of both runs: lower where a step of all nodes has more noise in it."""
    return min(1.0, CALM / (noise / (batch * math.sqrt(nodes))))


def recipe_for(
    epsilon: float | None, nodes: int, seed: int, rounds: int, batch: int, rate: float = 1.0
) -> Recipe:
    """The same but for privacy."""
    values: dict[str, Any] = {
        "name": "privacy on digits",
        "seed": seed,
        "model": {"kind": "mlp", "width": 128, "layers": 1},
        "data": {"source": "digits", "validation_fraction": 0.2},
        "inner": {
            "kind": "sgd",
            "lr": rate,
            "momentum": 0.9,
            "clip": None,
            "batch_size": batch,
            "schedule": "cosine",
            "total_steps": rounds * STEPS,
        },
        "strategy": {"preset": "local-sgd", "schedule": {"steps": STEPS}},
        "budget": {"rounds": rounds},
        "membership": {"min_nodes": nodes},
        "evaluation": {"every": 1000},
        "privacy": None if epsilon is None else {"epsilon": epsilon, "delta": DELTA, "clip": 0.5},
    }
    return parse_recipe(json.dumps(values), environment={}, where="privacy")


def _train(recipe: Recipe, corpus: Corpus, nodes: int, seed: int) -> tuple[float, int]:
    """The final model's accuracy, and the most steps that any node took."""

    def make() -> TorchTrainer:
        assert isinstance(recipe.inner, SgdSpec)
        return TorchTrainer(
            recipe.model, recipe.inner, corpus.manifest, corpus.dataset, recipe.seed, torch.device("cpu")
        )

    fleet = calm.Fleet(
        recipe=recipe,
        manifest=corpus.manifest,
        make_trainer=make,
        computers=tuple(calm.Computer(name=f"n{number}") for number in range(nodes)),
        seed=seed,
    )
    played = calm.play(fleet, calm.Observer())
    judge = make()
    judge.load(played.state.params)
    return judge.accuracy(JUDGED), max(member.steps for member in played.view.members.values())
