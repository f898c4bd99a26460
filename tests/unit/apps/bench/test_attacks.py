"""Cells of the matrix: what breaks the mean does not break the default, and everything is repeated by its seed."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from shoal.apps.bench import app
from shoal.apps.bench.attacks import Asked, measure, measure_all, table
from shoal.apps.bench.attacks_fleet import Attackers, train
from shoal.apps.bench.attacks_setting import Cell, recipe_for, rule_of
from shoal.apps.bench.attacks_training import StackedTrainers
from shoal.apps.bench.converge.corpus import read_corpus
from shoal.apps.bench.outside_rules import byzfl_rules
from shoal.base.errors import ShoalError
from shoal.data.dataset import Batch
from shoal.training.trainer import TorchTrainer

SHORT = Cell(attack="sign-flip", rounds=12)


def cell(**changes: Any) -> dict[str, Any]:
    return measure(dataclasses.replace(SHORT, **changes))


@pytest.mark.parametrize("attack", ["sign-flip", "scaling", "noise", "collusion", "zeros"])
def test_what_breaks_the_mean_does_not_break_the_default(attack: str) -> None:
    plain, default = (cell(attack=attack, fraction=0.3, aggregator=rule) for rule in ("mean", "default"))
    assert default["gap"] < 0.05 < plain["gap"]
    assert default["clean_loss"] == plain["clean_loss"]
    assert default["accuracy_gap"] < 0.05


@pytest.mark.parametrize("codec", ["sparse", "two-bit"])
def test_the_default_holds_with_few_bits_and_error_feedback(codec: str) -> None:
    assert cell(codec=codec, attack="poisoned-feedback")["gap"] < 0.02
    assert cell(codec=codec, attack="sign-flip")["gap"] < 0.04


def test_without_attackers_the_mean_is_the_clean_run() -> None:
    found = cell(fraction=0.0, aggregator="mean")
    assert found["gap"] == 0 and found["attackers"] == 0


def test_a_cell_is_repeated_by_its_seed_alone() -> None:
    first, second = cell(attack="noise", aggregator="krum"), cell(attack="noise", aggregator="krum")
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    assert cell(attack="noise", aggregator="krum", seed=1)["loss"] != first["loss"]


def test_a_backdoor_is_told_by_its_success() -> None:
    found = cell(attack="backdoor", fraction=0.3, aggregator="mean", rounds=20)
    assert found["backdoor_success"] > 0.2
    assert cell(attack="backdoor", fraction=0.0)["backdoor_success"] < 0.1


def test_lies_that_no_codec_sends_are_void() -> None:
    class Endless:
        def corrupt(self, honest: torch.Tensor, seen: object) -> torch.Tensor:
            return honest * float("inf")

    recipe = recipe_for(dataclasses.replace(SHORT, rounds=2), rule_of("default"))
    found = train(recipe, 10, Attackers(make=Endless, count=2, seed=0))
    assert found.void == 4


def test_a_guard_refuses_a_cell_and_leaves_it_out_of_a_matrix() -> None:
    with pytest.raises(ShoalError, match=r"bulyan needs n >= 4f\+3"):
        cell(aggregator="bulyan", nodes=10)
    said: list[str] = []
    asked = Asked(attacks=["zeros"], aggregators=["bulyan", "mean"], fractions=[0.2])
    rows = measure_all(asked, dataclasses.replace(SHORT, rounds=1), said.append)
    assert [row["aggregator"] for row in rows] == ["mean"] and "bulyan" in said[0]
    assert next(iter(table(rows))) == "| attack | mean 20% |"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attack": "sign-flop"}, "sign-flop"),
        ({"aggregator": "means"}, "means"),
        ({"aggregator": "krum f"}, "name=value"),
        ({"codec": "int9"}, "int9"),
        ({"model": "bert"}, "bert"),
        ({"aggregator": "krum f=[1"}, "plain value"),
        ({"aggregator": "krum f=2020-01-01"}, "plain value"),
        ({"fraction": 1.0}, "no honest node"),
        ({"fraction": -0.01}, "--fraction: found -0.01"),
        ({"fraction": float("nan")}, "--fraction: found nan"),
        ({"fraction": float("inf")}, "--fraction: found inf"),
        ({"attack": "backdoor", "model": "gpt"}, "image"),
    ],
)
def test_what_there_is_not_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ShoalError, match=words):
        cell(rounds=1, **changes)


class Raises:
    def corrupt(self, honest: torch.Tensor, seen: object) -> torch.Tensor:
        raise RuntimeError("boom")


class Short:
    def corrupt(self, honest: torch.Tensor, seen: object) -> torch.Tensor:
        return honest[:5]


class Silent:
    def corrupt(self, honest: torch.Tensor, seen: object) -> None:
        return None


class Beyond:
    def poison(self, batch: Batch, classes: int) -> Batch:
        return Batch(batch.inputs, batch.targets + classes)


class Unmade:
    def __init__(self) -> None:
        raise ValueError("no way")


@pytest.mark.parametrize(
    ("attack", "code", "words"),
    [
        ("Raises", "SH-ATTACK-02", r"Raises\.corrupt failed: RuntimeError: boom \(.*test_attacks\.py, line"),
        ("Short", "SH-ATTACK-02", r"Short\.corrupt gave a tensor of float32 \[5\] instead"),
        ("Silent", "SH-ATTACK-02", r"Silent\.corrupt gave NoneType instead"),
        ("Beyond", "SH-ATTACK-02", r"Beyond\.poison gave targets beyond 0 to 9"),
        ("Unmade", "SH-ATTACK-01", "cannot be made: ValueError: no way"),
    ],
)
def test_a_fault_in_ones_own_attack_is_told_as_that(attack: str, code: str, words: str) -> None:
    with pytest.raises(ShoalError, match=words) as caught:
        cell(rounds=1, nodes=5, attack=f"{__name__}:{attack}")
    assert caught.value.code == code


def test_rules_that_differ_in_a_parameter_have_columns_of_their_own() -> None:
    asked = Asked(attacks=["zeros"], aggregators=["krum f=0.1", "krum f=0.2"], fractions=[0.2])
    rows = measure_all(asked, dataclasses.replace(SHORT, rounds=1), lambda said: None)
    assert next(iter(table(rows))) == "| attack | krum f=0.1 20% | krum f=0.2 20% |"


def test_a_rule_is_named_with_its_parameters() -> None:
    assert rule_of("default") == {"kind": "robust"}
    assert rule_of("krum f=0.2, nnm=true") == {"kind": "krum", "f": 0.2, "nnm": True}


def test_members_train_as_nodes_of_their_own_would() -> None:
    recipe = recipe_for(SHORT, {"kind": "mean"})
    corpus = read_corpus(recipe.data)
    stacked = StackedTrainers(recipe, corpus, 2)
    own = [
        TorchTrainer(recipe.model, recipe.inner, corpus.manifest, corpus.dataset, 0, torch.device("cpu"))
        for _ in range(2)
    ]
    for step in range(5):
        indices = [np.arange(32) + 100 * step + 40 * member for member in range(2)]
        stacked.step([corpus.dataset.batch(part) for part in indices], step)
        for trainer, part in zip(own, indices, strict=True):
            trainer.step(part, step)
    for trainer, row in zip(own, stacked.params, strict=True):
        assert torch.allclose(trainer.params(), row, atol=1e-6)


def test_the_commands_print_one_object() -> None:
    options = ["--attack", "zeros", "--aggregator", "default", "--fraction", "0.3", "--nodes", "10"]
    done = CliRunner().invoke(app, ["attacks", *options, "--rounds", "2", "--json"])
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"loss", "clean_loss", "gap", "accuracy", "clean_accuracy"} <= set(found)
    assert found["attackers"] == 3


def timed(*options: str) -> dict[str, Any]:
    words = ["robust", "--params", "20000", "--updates", "8", "--threads", "1", "--json", *options]
    found: dict[str, Any] = json.loads(CliRunner().invoke(app, words).stdout.splitlines()[-1])
    return found


def test_a_rule_is_timed_beside_the_steps_of_a_round() -> None:
    found = timed("--rule", "robust")
    local, row = found["local_steps"], found["rules"]["robust"]
    whole = row["fold_s"] + local["steps"] * local["step_s"]
    assert found["default_share_of_round"] == pytest.approx(row["fold_s"] / whole, abs=1e-4)


def test_rules_are_timed_beside_the_mean_and_byzfl() -> None:
    found = timed("--no-training")
    assert found["local_steps"] is found["default_share_of_round"] is None
    assert found["default_ratio"] == found["rules"]["robust"]["ratio"] > 0
    assert (found["rules"]["krum"]["byzfl_s"] is not None) == bool(byzfl_rules(1))
    assert "bulyan" in found["rules"]
