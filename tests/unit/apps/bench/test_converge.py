"""Presets against their synchronous twins: what is compared, what is counted, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.apps import cli
from shoal.apps.bench.converge.command import compare, ranked
from shoal.apps.bench.converge.engines import find_engine
from shoal.apps.bench.converge.outcome import Comparison, Outcome
from shoal.apps.bench.converge.setup import Question, make_setup, rounds_for, steps_in
from shoal.apps.bench.converge.twin import Twins
from shoal.base.errors import ShoalError

TINY = (
    "model.width=16",
    "model.heads=2",
    "model.layers=1",
    "data.context=16",
    "inner.batch_size=2",
    "evaluation.batches=4",
)
USUALLY_4 = ("membership.usual_nodes=4",)
SPARE = ("strategy.schedule.steps=2", "strategy.merge.kind=add-delta")
PLAIN_SGD = ("inner.kind=sgd", "inner.clip=null", "inner.lr=0.3")
FIELDS = {
    "preset",
    "steps",
    "workers",
    "seed",
    "params",
    "tokens",
    "loss",
    "sync_loss",
    "gap",
    "bits_per_param_step",
    "received_bits_per_param_step",
    "wire_bytes",
    "rounds",
    "seconds",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("corpus") / "text"
    file.write_text("".join(f"the square of {n} is {n * n}\n" for n in range(3000)))
    return str(file)


def _question(corpus: str, *settings: str, steps: int = 6, workers: int = 3) -> Question:
    return Question(
        small=True, steps=steps, workers=workers, seed=3, settings=(*TINY, *settings), corpus=corpus
    )


def _one(preset: str, question: Question) -> Comparison:
    (row,) = compare([preset], question, "simulated", lambda text: None)
    return row


def test_plain_gradient_descent_in_sync_is_its_own_twin(corpus: str) -> None:
    row = _one("ddp", _question(corpus, *PLAIN_SGD))
    assert abs(row.gap) < 1e-5
    assert row.outcome.steps == row.outcome.rounds == 6
    assert row.outcome.tokens == 6 * 3 * 2 * 16
    assert row.bits_per_param_step == pytest.approx(32, rel=0.01)
    assert row.received_bits_per_param_step == pytest.approx(64, rel=0.01)


def test_averaging_after_many_steps_is_not(corpus: str) -> None:
    row = _one("local-sgd", _question(corpus, *PLAIN_SGD, "strategy.schedule.steps=6"))
    assert abs(row.gap) > 1e-5
    assert row.outcome.rounds == 1


@pytest.mark.parametrize("preset", ["local-sgd", "muloco", "sparseloco"])
def test_the_wire_carries_what_the_codec_says(corpus: str, preset: str) -> None:
    settings = ("model.width=96", "model.layers=2", "strategy.schedule.steps=1")
    row = _one(preset, _question(corpus, *settings, steps=3))
    fields, done = row.fields(), row.outcome
    assert abs(fields["wire_to_stated"] - 1) < 0.02
    parts = ("wire_update_bytes", "wire_state_bytes", "wire_control_bytes")
    assert sum(fields[part] for part in parts) == fields["wire_bytes"]
    assert done.received_bytes == pytest.approx(2 * done.sent_bytes, rel=0.02)
    assert 0 < fields["wire_control_bytes"] < 30_000 * row.workers * (done.rounds + 2)


@pytest.mark.parametrize("preset", ["async", "decoupled", "streaming-diloco"])
def test_those_that_do_not_wait_train_as_much(corpus: str, preset: str) -> None:
    row = _one(preset, _question(corpus, "strategy.schedule.steps=5", steps=30))
    assert 30 <= row.outcome.steps <= 35


def test_a_growing_schedule_is_cut_to_the_steps_that_were_asked_for(corpus: str) -> None:
    growing = (
        "strategy.schedule.steps=2",
        "strategy.schedule.steps_last=20",
        "strategy.schedule.warmup_rounds=3",
    )
    setup = make_setup("local-sgd", _question(corpus, *growing, steps=100))
    assert abs(setup.steps - 100) <= 10
    assert setup.recipe.budget.rounds == rounds_for(setup.recipe, 100)
    assert setup.steps == steps_in(setup.recipe, setup.recipe.budget.rounds)
    assert setup.inner.total_steps == setup.steps


@pytest.mark.parametrize(("steps", "rounds"), [(1, 1), (44, 1), (45, 2), (100, 3), (300, 10)])
def test_rounds_come_closest_to_the_steps(corpus: str, steps: int, rounds: int) -> None:
    setup = make_setup("local-sgd", _question(corpus, steps=steps))
    assert setup.recipe.budget.rounds == rounds
    assert setup.steps == 30 * rounds


@pytest.mark.parametrize(
    ("preset", "steps"), [("async", 30), ("decoupled", 30), ("adaptive", 30), ("halos", 15)]
)
def test_the_twin_takes_whole_updates_too(corpus: str, preset: str, steps: int) -> None:
    setup = make_setup(preset, _question(corpus, steps=20))
    assert setup.steps == setup.twin_inner.total_steps == steps
    assert setup.recipe.budget.tokens == steps * 3 * 2 * 16


@pytest.mark.parametrize("engine", ["simulated", "lockstep"])
def test_spare_steps_are_counted(corpus: str, engine: str) -> None:
    spare = ("strategy.schedule.steps=2", "strategy.schedule.overlap=5", "strategy.merge.kind=add-delta")
    (row,) = compare(["local-sgd"], _question(corpus, *spare, steps=24), engine, lambda text: None)
    assert 24 <= row.outcome.steps <= 30


def test_a_batch_of_ones_own_brings_its_own_warm_up(corpus: str) -> None:
    large = make_setup("auto", _question(corpus, "inner.batch_size=16", steps=60))
    assert large.inner.warmup_steps == 10 and large.twin_inner.warmup_steps == 5 and large.inner.split == 2
    small = make_setup("auto", replace(_question(corpus, steps=60), small=False))
    assert small.inner.warmup_steps == small.twin_inner.warmup_steps == 5 and small.inner.split == 1


@pytest.mark.parametrize(
    ("engine", "preset", "settings", "why"),
    [
        ("lockstep", "decoupled", (), "do not wait"),
        ("lockstep", "gossip", (), "in pairs"),
        ("lockstep", "local-sgd", ("strategy.digest={kind: int8, folders: 2}",), "fold for one another"),
        ("lockstep", "local-sgd", ("model={kind: transformers}",), "GPTs"),
        ("lockstep", "local-sgd", (*USUALLY_4, "membership.scaling=batch"), "a fleet of 1 has another batch"),
        (
            "lockstep",
            "local-sgd",
            (*USUALLY_4, "membership.scaling=rate"),
            "a fleet of 1 has another outer rate",
        ),
        ("lockstep", "auto", ("budget={tokens: 1000}",), "by planner.kind aware and without budget.rounds"),
        (
            "lockstep",
            "auto",
            ("budget={tokens: 1000}", "strategy.planner.kind=naive"),
            "by schedule.hide and without budget.rounds",
        ),
        (
            "lockstep",
            "local-sgd",
            (*SPARE, "strategy.schedule.overlap=5", "strategy.schedule.hide=0.5"),
            "by schedule.hide and without budget.rounds",
        ),
        (
            "lockstep",
            "local-sgd",
            (*SPARE, "strategy.schedule.overlap=1", "strategy.planner.kind=aware"),
            "how many steps schedule.overlap is",
        ),
        (
            "lockstep",
            "local-sgd",
            (
                "strategy.planner.kind=aware",
                "strategy.codec.error_feedback=true",
                "strategy.codec.choices=[{kind: two-bit}]",
            ),
            "which of codec.choices",
        ),
        ("simulated", "halos", (), "do not fill 2 regions"),
    ],
)
def test_what_an_engine_cannot_do_is_said_before_anything_is_trained(
    corpus: str, engine: str, preset: str, settings: tuple[str, ...], why: str
) -> None:
    said: list[str] = []
    question = _question(corpus, *settings, workers=1)
    with pytest.raises(ShoalError) as caught:
        compare(["local-sgd", preset], question, engine, said.append)
    assert caught.value.code == "SH-RECIPE-03" and why in caught.value.cause and not said


@pytest.mark.parametrize("scaling", ["batch", "rate"])
def test_a_fleet_of_the_usual_size_has_nothing_to_scale(corpus: str, scaling: str) -> None:
    question = _question(corpus, *USUALLY_4, f"membership.scaling={scaling}", workers=4)
    assert find_engine("lockstep", make_setup("local-sgd", question))
    assert find_engine("simulated", make_setup("local-sgd", replace(question, workers=1)))


def test_a_budget_of_rounds_leaves_nothing_to_measured_times(corpus: str) -> None:
    by_time = ("strategy.schedule.hide=0.01", "strategy.planner.kind=aware")
    question = _question(corpus, "strategy.schedule.steps=2", steps=12)
    planned = _one("local-sgd", replace(question, settings=(*question.settings, *by_time))).outcome
    plain = compare(["local-sgd"], question, "lockstep", lambda text: None)[0].outcome
    assert planned.steps == plain.steps == 12 and planned.rounds == plain.rounds == 6
    assert planned.loss == pytest.approx(plain.loss, rel=1e-5)
    assert find_engine("lockstep", make_setup("auto", _question(corpus)))


@pytest.mark.parametrize(("loss", "sync_loss"), [(math.nan, 2.0), (2.0, math.inf), (math.inf, math.inf)])
def test_what_diverged_has_no_gap_and_comes_last(loss: float, sync_loss: float) -> None:
    done = Outcome(
        loss=loss, params=1, steps=1, tokens=1, rounds=1, sent_bytes=1, received_bytes=1, wire_bytes=1
    )
    row = Comparison(
        preset="diloco", inner="sgd", workers=1, seed=0, outcome=done, sync_loss=sync_loss, seconds=1
    )
    fine = replace(row, outcome=replace(done, loss=9.0), sync_loss=1.0)
    assert row.fields()["gap"] is None and ranked([row, fine]) == [fine, row]
    json.dumps(row.fields(), allow_nan=False)


def test_presets_of_one_question_share_a_twin(corpus: str) -> None:
    question, said = _question(corpus, "strategy.schedule.steps=3"), []
    setups = [make_setup(preset, question) for preset in ("local-sgd", "diloco", "muloco")]
    twins = Twins()
    losses = [twins.loss(setup, said.append) for setup in setups]
    assert losses[0] == losses[1] != losses[2]
    assert [text.split(":")[0] for text in said] == ["synchronous adamw", "synchronous muon"]


def test_the_seed_decides(corpus: str) -> None:
    question = _question(corpus, "strategy.schedule.steps=3")
    first, again = _one("diloco", question), _one("diloco", question)
    other = _one("diloco", replace(question, seed=4))
    assert (first.outcome, first.sync_loss) == (again.outcome, again.sync_loss)
    assert first.outcome.loss != other.outcome.loss
    assert first.sync_loss != other.sync_loss


def test_a_fleet_that_diverges_says_so(corpus: str) -> None:
    with pytest.raises(ShoalError) as caught:
        _one("local-sgd", _question(corpus, "inner.kind=sgd", "inner.lr=999", "inner.clip=null", steps=60))
    assert caught.value.code in ("SH-TRAIN-01", "SH-CODEC-01")


def test_an_unknown_preset_names_the_known(corpus: str) -> None:
    with pytest.raises(ShoalError) as caught:
        compare(["diloco", "dilcoo"], _question(corpus), "simulated", lambda text: None)
    assert caught.value.code == "SH-RECIPE-02"
    assert "dilcoo" in caught.value.cause and "'diloco'" not in caught.value.cause
    assert "diloco" in caught.value.next_step


def test_the_command_prints_one_object(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "bench",
        "converge",
        "--small",
        "--steps",
        "6",
        "--workers",
        "2",
        "--corpus",
        corpus,
        "--json",
    ]
    for setting in (*TINY, "strategy.schedule.steps=3"):
        arguments += ["--set", setting]
    arguments += ["--preset", "local-sgd", "--plot", str(tmp_path / "gap.png")]
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row.keys() >= FIELDS
    assert row["gap"] == pytest.approx(row["loss"] / row["sync_loss"] - 1, abs=1e-4)
    assert (tmp_path / "gap.png").stat().st_size > 10_000
    assert b"local-sgd" in (tmp_path / "gap.svg").read_bytes()
