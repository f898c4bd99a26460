"""What is compared: one model on one corpus, trained by a preset's fleet and by its synchronous twin.

In flows what was asked for; out flows a frozen `Setup`. Invariant: every preset of one question has the same model,
data, batch, schedule and number of inner steps a worker; only the strategy differs, and the inner optimiser where
a preset is made for another.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from shoal.apps.bench.converge.corpus import Corpus, data_values, read_corpus
from shoal.apps.bench.converge.outside import is_outside, outer_settings, twin_of
from shoal.base.errors import ShoalError
from shoal.runlog.view import RunView, Step, Totals
from shoal.strategy.pieces import Strategy, steps_outside
from shoal.strategy.planning import local_steps
from shoal.strategy.presets import PRESETS, row_for
from shoal.strategy.recipe import Budget, Recipe, parse_recipe
from shoal.training.device import pick_device
from shoal.training.spec import AdamWSpec, MuonSpec, OwnInnerSpec, SgdSpec

Inner = SgdSpec | AdamWSpec | MuonSpec
Say = Callable[[str], None]

MADE_FOR = {"muloco": "muon", "auto": "muon"}
"""Presets that are made for another inner optimiser than AdamW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A size of the question, and the settings that suit it."""

    model: dict[str, Any]
    context: int
    batch: int
    workers: int
    steps: int
    rates: dict[str, dict[str, float]]
    """By inner optimiser."""
    outer_rates: dict[str, float]
    """By outer optimiser, where that takes the real step."""


SMALL = Scale(
    model={"kind": "gpt", "layers": 2, "width": 96, "heads": 4, "mlp": "gelu"},
    context=64,
    batch=8,
    workers=4,
    steps=300,
    rates={"sgd": {"lr": 0.5}, "adamw": {"lr": 3e-3}, "muon": {"lr": 0.02, "adamw_lr": 3e-3}},
    outer_rates={"adam": 3e-3, "onebit-adam": 3e-3, "sign": 3e-3},
)
LARGE = Scale(
    model={"kind": "gpt", "layers": 8, "width": 512, "heads": 8, "mlp": "gelu"},
    context=512,
    batch=16,
    workers=8,
    steps=1200,
    rates={"sgd": {"lr": 0.1}, "adamw": {"lr": 1e-3}, "muon": {"lr": 0.02, "adamw_lr": 1e-3}},
    outer_rates={"adam": 1e-3, "onebit-adam": 1e-3, "sign": 1e-3},
)
PLAIN = "local-sgd"
"""A preset without an opinion on the inner optimiser."""
VALIDATION_BATCHES = 64
NEVER = 1_000_000_000
WARM_UP_SHARE = 12
"""One step in so many at the beginning raises the learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a person asks for, besides the preset."""

    small: bool = False
    steps: int | None = None
    workers: int | None = None
    seed: int = 0
    settings: tuple[str, ...] = ()
    """`a.b=c`, over everything else."""
    corpus: str | None = None
    device: str = "cpu"

    @property
    def scale(self) -> Scale:
        return SMALL if self.small else LARGE

    def given(self, field: str) -> str | None:
        """What the settings say last of a field; None if nothing."""
        pairs = (setting.partition("=") for setting in reversed(self.settings))
        return next((value.strip() for name, _, value in pairs if name.strip() == field), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One preset's training, decided in every detail."""

    preset: str
    recipe: Recipe
    corpus: Corpus
    workers: int
    steps: int
    """Inner steps of each worker."""
    device: torch.device
    twin_inner: Inner
    """The optimiser of the synchronous twin: with its usual settings, whatever the preset changes in its own."""

    @property
    def inner(self) -> Inner:
        assert not isinstance(self.recipe.inner, OwnInnerSpec)
        return self.recipe.inner

    @property
    def seed(self) -> int:
        return self.recipe.seed


def make_setup(preset: str, question: Question) -> Setup:
    """Decide everything. Raises SH-RECIPE-02 or -03 for what cannot be trained, and what reading a corpus raises."""
    scale = question.scale
    workers, wanted = question.workers or scale.workers, question.steps or scale.steps
    draft = _recipe(preset, question, wanted, {"rounds": wanted})
    if isinstance(draft.inner, OwnInnerSpec):
        raise ShoalError("SH-RECIPE-03", "inner.kind own has no optimiser here", "use sgd, adamw or muon")
    corpus = read_corpus(draft.data)
    counted = draft.for_region("counted") if draft.strategy.region is not None else draft
    rounds = rounds_for(counted, wanted)
    steps, budget = steps_in(counted, rounds), {"rounds": rounds}
    if not _fixed_by_rounds(draft.strategy):
        budget = {"tokens": steps * workers * draft.inner.batch_size * corpus.sample_tokens}
    return Setup(
        preset=preset,
        recipe=_recipe(preset, question, steps, budget),
        corpus=corpus,
        workers=workers,
        steps=steps,
        device=pick_device(question.device),
        twin_inner=_twin_inner(draft, question, steps),
    )


def _fixed_by_rounds(strategy: Strategy) -> bool:
    """Whether so many rounds always have so many steps of each worker: nobody is late, no region has rounds of its own,
    and what is trained while updates travel is never more than a round should have."""
    usual, schedule = strategy.region is None and not strategy.seal_rule().most_stale, strategy.schedule
    return usual and schedule.overlap < min(schedule.steps, schedule.steps_last or schedule.steps)


def _twin_inner(recipe: Recipe, question: Question, steps: int) -> Inner:
    outside = steps_outside(recipe.strategy)
    kind = "adamw" if outside else recipe.inner.kind
    settings = [setting for setting in question.settings if not setting.strip().startswith("strategy.")]
    plain = dataclasses.replace(question, settings=(*settings, f"inner.kind={kind}"))
    inner = _recipe(PLAIN, plain, steps, {"rounds": 1}).inner
    assert not isinstance(inner, OwnInnerSpec)
    return twin_of(recipe.strategy.outer, inner) if outside and isinstance(inner, AdamWSpec) else inner


def _recipe(preset: str, question: Question, steps: int, budget: dict[str, int]) -> Recipe:
    scale, warm_up = question.scale, max(1, steps // WARM_UP_SHARE)
    kind = question.given("inner.kind") or MADE_FOR.get(preset, "adamw")
    batch = question.given("inner.batch_size") or ""
    values: dict[str, Any] = {
        "name": f"converge {preset}"[:80],
        "seed": question.seed,
        "model": scale.model,
        "data": data_values(question.corpus, scale.context),
        "inner": {
            "kind": kind,
            "batch_size": scale.batch,
            "schedule": "cosine",
            "total_steps": steps,
            "warmup_steps": warm_up,
            "precision": "bf16" if question.device.startswith("cuda") else "fp32",
            **scale.rates.get(kind, {}),
        },
        "strategy": {"preset": preset},
        "budget": budget,
        "membership": {"min_nodes": question.workers or scale.workers},
        "storage": {"archive": False, "keep_bytes": 0},
        "evaluation": {"every": NEVER, "batches": VALIDATION_BATCHES},
    }
    row = row_for(preset, int(batch) if batch.isdecimal() else scale.batch) if preset in PRESETS else {}
    if "warm_up" in row and row["inner"]["kind"] == kind:
        del values["inner"]["warmup_steps"]
    if is_outside(preset):
        rate = scale.outer_rates[PRESETS[preset]["outer"]["kind"]]
        values["strategy"] = outer_settings(preset, rate, steps, warm_up)
        values["inner"] = {key: values["inner"][key] for key in ("batch_size", "precision")}
    return parse_recipe(json.dumps(values), overrides=question.settings, environment={}, where="converge")


# --- rounds and steps --------------------------------------------------------------------------------------


def steps_in(recipe: Recipe, rounds: int) -> int:
    """Inner steps that each member takes in a run of so many rounds, by the recipe's own schedule."""
    planned = recipe.model_copy(update={"budget": Budget(rounds=rounds)})
    view, steps = RunView(), 0
    for number in range(rounds):
        steps += local_steps(planned, view)
        view.path.append(Step(number, number, (), (), totals=Totals(rounds=number + 1)))
    return steps


def rounds_for(recipe: Recipe, steps: int) -> int:
    """The number of rounds whose steps come closest to these."""
    low, high = 1, steps
    while low < high:
        middle = (low + high) // 2
        if steps_in(recipe, middle) < steps:
            low = middle + 1
        else:
            high = middle
    below = max(1, low - 1)
    return min((below, low), key=lambda rounds: (abs(steps_in(recipe, rounds) - steps), -rounds))
