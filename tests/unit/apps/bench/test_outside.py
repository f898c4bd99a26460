"""Presets whose outer optimiser takes the real step, against the optimiser whose steps these are."""

from __future__ import annotations

import math

import pytest

from shoal.apps.bench.converge.command import compare
from shoal.apps.bench.converge.outcome import Comparison
from shoal.apps.bench.converge.setup import Question, make_setup
from shoal.training.spec import AdamWSpec

TINY = (
    "model.width=16",
    "model.heads=2",
    "model.layers=1",
    "data.context=16",
    "inner.batch_size=2",
    "evaluation.batches=4",
)
STEPS = 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("corpus") / "text"
    file.write_text("".join(f"the square of {n} is {n * n}\n" for n in range(3000)))
    return str(file)


def _question(corpus: str, *settings: str) -> Question:
    return Question(small=True, steps=STEPS, workers=3, seed=3, settings=(*TINY, *settings), corpus=corpus)


def _one(preset: str, question: Question, engine: str) -> Comparison:
    (row,) = compare([preset], question, engine, lambda text: None)
    return row


@pytest.mark.parametrize("engine", ["simulated", "lockstep"])
def test_synchronous_adam_is_its_own_twin(corpus: str, engine: str) -> None:
    """The fleet's gradients, folded to the same bits everywhere, take the steps of torch's Adam. (Without clipping,
    which each node does for itself.)"""
    row = _one("ddp-adam", _question(corpus, "inner.clip=null", "strategy.outer.lr=0.02"), engine)
    assert abs(row.gap) < 1e-4 and row.outcome.rounds == STEPS
    other = _one("ddp-adam", _question(corpus, "inner.clip=null", "strategy.outer.lr=0.01"), engine)
    assert abs(other.sync_loss - row.sync_loss) > 0.01, "the twin follows the outer settings"


def test_the_twin_of_an_outer_adam_has_its_settings(corpus: str) -> None:
    settings = (
        "strategy.outer.beta2=0.98",
        "strategy.outer.weight_decay=0.05",
        "strategy.outer.decay=linear",
    )
    for preset in ("ddp-adam", "onebit-adam"):
        twin = make_setup(preset, _question(corpus, *settings)).twin_inner
        assert isinstance(twin, AdamWSpec) and twin.batch_size == 2
        assert (twin.lr, twin.betas, twin.weight_decay) == (3e-3, (0.9, 0.98), 0.05)
        assert (twin.schedule, twin.warmup_steps, twin.total_steps, twin.floor) == ("linear", 1, STEPS, 0.1)


def test_signs_have_the_usual_adam_beside_them(corpus: str) -> None:
    usual = make_setup("ddp", _question(corpus)).twin_inner
    assert make_setup("demo", _question(corpus)).twin_inner == usual and isinstance(usual, AdamWSpec)


def test_one_bit_adam_freezes_after_a_quarter_of_the_rounds(corpus: str) -> None:
    row = _one("onebit-adam", _question(corpus), "simulated")
    strategy = make_setup("onebit-adam", _question(corpus)).recipe.strategy
    assert strategy.codec.warmup_rounds == strategy.outer.params()["freeze_after"] == STEPS // 4
    assert 0.25 * 32 + 0.75 < row.bits_per_param_step < 0.25 * 32 + 0.75 * 2
    assert row.outcome.wire_update_bytes == pytest.approx(row.outcome.stated_update_bytes, rel=0.05)


@pytest.mark.parametrize("engine", ["simulated", "lockstep"])
def test_demo_learns(corpus: str, engine: str) -> None:
    row = _one("demo", _question(corpus), engine)
    assert row.outcome.loss < 5.3 < math.log(256) and row.bits_per_param_step < 4
