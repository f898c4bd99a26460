"""Every mistake in a recipe is answered with its path, what was found and what is allowed."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.base.errors import ShoalError
from shoal.strategy.presets import PRESETS
from shoal.strategy.recipe import load_recipe, parse_recipe, recipe_in_log
from shoal.strategy.seal_rules import NodePace

from .recipes import GOOD, changed, parsed, refusal


def test_a_good_recipe() -> None:
    recipe = parsed(GOOD)
    assert recipe.name == "a run" and recipe.strategy.schedule.steps == 5
    assert recipe.strategy.codec.kind == "int8" and recipe.strategy.outer.params() == {"lr": 1.0}
    assert recipe_in_log(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize("preset", ["ddp", "local-sgd", "diloco"])
def test_presets_expand(preset: str) -> None:
    recipe = parsed(changed("strategy", {"preset": preset}))
    strategy = recipe.strategy
    assert strategy.preset == preset
    assert strategy.schedule.steps == (1 if preset == "ddp" else 30)
    assert strategy.outer.kind == ("nesterov" if preset == "diloco" else "sgd")
    assert strategy.codec.kind == ("none" if preset == "ddp" else "int8")
    assert strategy.fold_rules().outer.slots == (("momentum",) if preset == "diloco" else ())
    assert strategy.seal_rule().deadline_s > 0 and not strategy.merge_rule().keeps_progress


def test_a_recipe_may_override_any_piece_of_a_preset() -> None:
    pieces = {
        "preset": "diloco",
        "schedule": {"overlap": True},
        "codec": {"kind": "int8", "block": 64, "error_feedback": True},
        "outer": {"momentum": 0.5},
        "merge": {"kind": "mix", "alpha": 1.0},
    }
    strategy = parsed(changed("strategy", pieces)).strategy
    assert strategy.schedule.steps == 30 and strategy.schedule.overlap
    assert strategy.outer.params() == {"lr": 0.7, "momentum": 0.5}
    assert strategy.codec.params() == {"block": 64} and strategy.codec.error_feedback
    assert strategy.merge_rule().keeps_progress


def test_another_piece_does_not_inherit_the_presets_parameters() -> None:
    strategy = parsed(changed("strategy", {"preset": "diloco", "outer": {"kind": "sgd"}})).strategy
    assert strategy.outer.params() == {}


def test_a_list_of_no_paths_is_not_taken_for_empty_data() -> None:
    error = refusal(changed("data", {"source": "text", "path": []}))
    assert error.code == "SH-RECIPE-02" and "data.path: found []; allowed: at least 1 of them" in error.cause


def test_what_the_log_could_not_hold_is_refused_wherever_it_stands() -> None:
    odd = {
        "inner.eps": "inner.eps: .inf",
        "inner.clip": "inner.clip: .nan",
        "name": "name: 2026-01-02",
        "data.validation_fraction": "data.validation_fraction: !!binary aGk=",
        "model.config.deep": r'model.config.deep: "\ud800"',
    }
    for path, line in odd.items():
        error = refusal(changed(path, yaml.safe_load(line.split(": ", 1)[1])))
        assert error.code == "SH-RECIPE-02" and f"{path}: found" in error.cause and "allowed" in error.cause


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("inner.lrr", 1, "inner.lrr: unknown field (did you mean 'lr'?)"),
        ("model.wobble", 1, "model.wobble: unknown field; allowed: kind, width, layers"),
        ("data", {"source": "/nope"}, "data.source: found '/nope'; allowed: stdlib, text, jsonl"),
        ("data", {}, "data.source: missing; allowed: stdlib, text"),
        ("data", {"source": "text"}, "data.path: missing"),
        ("data", {"source": "text", "path": 5}, "data.path: found 5"),
        (
            "data",
            {"source": "stdlib", "tokenizer": {"kind": "bpe", "vocab_size": 1}},
            "data.tokenizer.vocab_size: found 1; allowed: greater than or equal to 257",
        ),
        (
            "data",
            {"source": "stdlib", "tokenizer": {"kind": "x"}},
            "data.tokenizer.kind: found 'x'; allowed: byte",
        ),
        ("model", {"kind": "gpt", "width": 7}, "model: width 7 is not an even multiple"),
        ("model.kind", ["mlp"], "model.kind: found ['mlp']; allowed: gpt"),
        ("model", {"kind": "mlp", "mlp": 5, "width": 0}, "model.width: found 0"),
        ("inner.kind", "adam", "inner.kind: found 'adam'; allowed: sgd, adamw, muon, own"),
        ("inner.betas", [0.9, 2], "inner.betas.1: found 2; allowed: less than 1"),
        ("strategy.codec.blok", 1, "strategy.codec.blok: int8 has no such parameter; allowed: block"),
        ("strategy.seal.kind", "never", "strategy.seal.kind: found 'never'; allowed: all-or-deadline"),
        ("strategy.outer.lr", True, "strategy.outer.lr: found True; allowed: a plain value, a finite number"),
        ("strategy.seal.deadline_s", 1e300, "strategy.seal: deadline_s must be above 0 and at most"),
    ],
)
def test_a_path_in_an_answer_is_a_path_in_the_file(path: str, value: Any, says: str) -> None:
    error = refusal(changed(path, value))
    assert error.code == "SH-RECIPE-02" and f"recipe: {says}" in error.cause


def test_a_log_cannot_smuggle_in_what_yaml_may_not_say() -> None:
    text = parsed(GOOD).model_dump_json().replace('"lr":1.0', '"lr":Infinity')
    with pytest.raises(ShoalError, match=r"SH-RECIPE-02.*strategy\.outer\.lr"):
        recipe_in_log(text)
    with pytest.raises(ShoalError, match="SH-RECIPE-01"):
        recipe_in_log("[" * 100_000)


# path, value, what the answer must say
FIELDS: list[tuple[str, Any, list[str]]] = [
    ("name", "", ["name", "''", "1 character"]),
    ("name", "x" * 81, ["name", "80 characters"]),
    ("seed", -1, ["seed", "-1", "0"]),
    ("seed", "seven", ["seed", "'seven'", "integer"]),
    ("seed", 2**63, ["seed", str(2**63)]),
    ("sede", 1, ["sede", "unknown", "did you mean 'seed'"]),
    ("budget.rouns", 1, ["budget.rouns", "unknown", "did you mean 'rounds'"]),
    ("budget.rounds", 0, ["budget.rounds", "0", "1"]),
    ("budget.seconds", -2, ["budget.seconds", "-2", "greater than 0"]),
    ("budget", None, ["budget", "None"]),
    ("budget", 5, ["budget", "5"]),
    ("model.kind", "mpl", ["model", "mpl", "gpt", "mlp", "resnet"]),
    ("model.width", "wide", ["model", "width", "'wide'", "integer"]),
    ("data.source", "internet", ["data", "internet", "stdlib", "digits"]),
    ("inner.lr", 0, ["inner", "lr", "0", "greater than 0"]),
    ("inner.batch_size", 0, ["inner", "batch_size", "0", "1"]),
    ("strategy.preset", "diloko", ["strategy.preset", "diloko", "ddp", "diloco", "local-sgd"]),
    ("strategy.preset", ["diloco"], ["strategy.preset", "diloco"]),
    ("strategy.preset", None, ["strategy.preset", "None"]),
    ("strategy.schedule.steps", 0, ["strategy.schedule.steps", "0", "1"]),
    ("strategy.schedule.fragments", 2000, ["strategy.schedule.fragments", "2000", "1024"]),
    ("strategy.codec.kind", "zip", ["strategy.codec", "zip", "fp16", "int8", "none"]),
    ("strategy.codec.kind", 7, ["strategy.codec.kind", "7"]),
    ("strategy.codec.blok", 64, ["strategy.codec", "blok", "block"]),
    ("strategy.codec.block", 3, ["strategy.codec", "3", "power of two"]),
    ("strategy.codec.block", "big", ["strategy.codec", "big"]),
    ("strategy.codec.block", 256.0, ["strategy.codec", "256"]),
    ("strategy.codec.block", [1], ["strategy.codec", "block", "plain value"]),
    ("strategy.seal.kind", "never", ["strategy.seal", "never", "all-or-deadline"]),
    ("strategy.seal.deadline_s", 0, ["strategy.seal", "deadline_s", "0", "above 0"]),
    ("strategy.seal.deadline_s", float("inf"), ["strategy.seal", "inf"]),
    ("strategy.seal.deadline_s", float("nan"), ["strategy.seal", "nan"]),
    ("strategy.aggregate.kind", "mode", ["strategy.aggregate", "mode", "mean"]),
    ("strategy.outer.kind", "adom", ["strategy.outer", "adom", "nesterov", "sgd"]),
    ("strategy.outer.momentum", 0.9, ["strategy.outer", "momentum", "lr"]),
    ("strategy.outer.lr", "fast", ["strategy.outer", "fast"]),
    ("strategy.outer.lr", 1e300, ["strategy.outer", "1e+300"]),
    ("strategy.outer.lr", float("nan"), ["strategy.outer", "nan"]),
    ("strategy.merge", {"kind": "mix", "alpha": 2}, ["strategy.merge", "alpha", "2", "at most 1"]),
    ("strategy.merge", "replace", ["strategy.merge", "'replace'"]),
    ("strategy.codec", None, ["strategy.codec", "None"]),
    ("strategy", [], ["strategy"]),
    ("strategy.shedule", {}, ["strategy.shedule", "unknown", "did you mean 'schedule'"]),
    ("membership.min_nodes", 0, ["membership.min_nodes", "0", "1"]),
    ("membership.lease_s", float("inf"), ["membership.lease_s", "inf"]),
    ("storage.receipts", 17, ["storage.receipts", "17", "16"]),
    ("storage.quota_bytes", "20 GB", ["storage.quota_bytes", "'20 GB'", "integer"]),
    ("evaluation.every", 0, ["evaluation.every", "0", "1"]),
]


@pytest.mark.parametrize(("path", "value", "says"), FIELDS, ids=lambda x: x if isinstance(x, str) else None)
def test_a_field_that_is_wrong(path: str, value: Any, says: list[str]) -> None:
    error = refusal(changed(path, value))
    assert error.code == "SH-RECIPE-02"
    for part in says:
        assert part in error.cause + error.next_step, f"{part!r} is not in: {error}"


@pytest.mark.parametrize("section", ["model", "data", "inner", "budget"])
def test_a_missing_section_is_named(section: str) -> None:
    values = {key: value for key, value in GOOD.items() if key != section}
    error = refusal(values)
    assert error.code == "SH-RECIPE-02" and f"{section}: missing" in error.cause


def test_without_a_budget_there_is_no_end() -> None:
    error = refusal(changed("budget", {}))
    assert error.code == "SH-RECIPE-02" and "rounds, tokens, seconds" in error.cause


def test_every_mistake_is_named_at_once() -> None:
    values = changed("seed", -1)
    values["budget"] = {"rounds": 0}
    cause = refusal(values).cause
    assert "seed" in cause and "budget.rounds" in cause


def test_overlap_needs_a_merge_that_keeps_progress() -> None:
    error = refusal(changed("strategy.schedule.overlap", True))
    assert error.code == "SH-RECIPE-03"
    assert "replace" in error.cause and "mix" in error.cause and "strategy" in error.cause


@pytest.mark.parametrize(
    ("strategy", "budget", "says"),
    [
        ({"schedule": {"order": "rotate"}}, {"rounds": 1}, "one fragment"),
        (
            {"schedule": {"order": "rotate", "fragments": 2}, "seal": {"kind": "quorum", "staleness": 1}},
            {"rounds": 1},
            "another fragment's turn",
        ),
        (
            {"schedule": {"order": "rotate", "fragments": 2}, "seal": {"kind": "arrivals"}},
            {"rounds": 1},
            "another fragment's turn",
        ),
        ({"schedule": {"overlap": 3}, "seal": {"kind": "arrivals"}}, {"rounds": 1}, "thrown away"),
        ({"schedule": {"seconds": 60}}, {"rounds": 1}, "deadline_s 60"),
        ({"schedule": {"seconds": 6, "steps_last": 9}}, {"rounds": 1}, "use one of them"),
        ({"schedule": {"steps_last": 9}}, {"seconds": 60}, "budget.rounds or budget.tokens"),
        ({"preset": "demo", "merge": {"kind": "elastic"}}, {"rounds": 1}, "a part of every raw gradient"),
        ({"preset": "ddp-adam", "merge": {"kind": "mix"}}, {"rounds": 1}, "a part of every raw gradient"),
        ({"aggregate": {"kind": "heloco"}}, {"rounds": 1}, "outer optimiser's momentum"),
        ({"aggregate": {"kind": "heloco"}, "outer": {"kind": "sign"}}, {"rounds": 1}, "has none"),
    ],
)
def test_what_cannot_work_together_is_refused_with_the_reason(
    strategy: dict[str, Any], budget: dict[str, Any], says: str
) -> None:
    error = refusal({**GOOD, "strategy": {"preset": "local-sgd", **strategy}, "budget": budget})
    assert error.code == "SH-RECIPE-03" and says in error.cause


def test_an_aggregator_that_reads_momentum_goes_with_an_outer_that_has_it() -> None:
    strategy = {"preset": "diloco", "aggregate": {"kind": "heloco"}}
    assert parse_recipe(yaml.safe_dump({**GOOD, "strategy": strategy}), environment={})


def test_overlap_may_be_a_number_or_as_much_as_a_round() -> None:
    for found, overlap in ((True, 5), (False, 0), (0, 0), (3, 3)):
        schedule = {"steps": 5, "overlap": found}
        strategy = {"preset": "local-sgd", "schedule": schedule, "merge": {"kind": "mix"}}
        assert parsed(changed("strategy", strategy)).strategy.schedule.overlap == overlap


def test_weights_are_named_and_discounted() -> None:
    weights = {"kind": "tokens-squared-per-step", "discount": 0.5}
    found = parsed(changed("strategy.weights", weights)).strategy.weights
    assert [found.discounted(100, age) for age in (0, 1, 3, 10**6)] == [100, 70, 50, 1]
    assert parsed(GOOD).strategy.weights.discounted(100, 7) == 100
    error = refusal(changed("strategy.weights", {"kind": "vibes"}))
    assert error.code == "SH-RECIPE-02" and "strategy.weights.kind: found 'vibes'" in error.cause


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_stands_on_its_own(preset: str) -> None:
    values = changed("strategy", {"preset": preset})
    values["inner"] = PRESETS[preset].get("inner", GOOD["inner"])
    strategy = parsed(values).strategy
    assert strategy.preset == preset and strategy.fold_rules() and strategy.merge_rule()
    assert strategy.seal_rule().staleness(NodePace(0, 0)) >= 0


def test_a_lease_must_outlast_heartbeats() -> None:
    error = refusal(changed("membership", {"lease_s": 3, "heartbeat_s": 2}))
    assert error.code == "SH-RECIPE-03" and "lease_s" in error.cause and "heartbeat_s" in error.cause


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"membership": {"min_nodes": 5, "max_nodes": 3}}, ["membership.min_nodes: found 5", "max_nodes 3"]),
        ({"membership": {"min_nodes": 10_001}}, ["membership.min_nodes: found 10001", "10000"]),
        (
            {"membership": {"min_nodes": 401}, "identity": {"signatures": "hybrid"}},
            ["membership.min_nodes: found 401", "the 400 nodes", "hybrid"],
        ),
        (
            {"membership": {"min_nodes": 2, "allow": ["a" * 40, "a" * 40]}},
            ["membership.min_nodes: found 2", "the 1 that membership.allow names"],
        ),
        (
            {"membership": {"coordinators": ["a:1", "abc"]}},
            ["membership.coordinators.1: found 'abc'", "HOST:PORT"],
        ),
        (
            {"membership": {"coordinators": ["a:1", "a:1"]}},
            ["membership.coordinators.1: found 'a:1'", "once"],
        ),
        ({"audit": {"jury": 0}}, ["audit.jury: found 0", "allowed: 1 to 8"]),
    ],
)
def test_a_run_that_could_never_begin_is_refused_but_a_log_that_has_it_is_read(
    sections: dict[str, Any], says: list[str]
) -> None:
    error = refusal({**GOOD, **sections})
    assert error.code == "SH-RECIPE-03" and all(words in error.cause for words in says)
    founded = {**json.loads(parsed(GOOD).model_dump_json()), **sections}
    assert recipe_in_log(json.dumps(founded)).membership.min_nodes


def test_a_variable_that_names_no_field_is_named_itself() -> None:
    assert "SHOAL_SET_budget__: " in refusal(GOOD, SHOAL_SET_budget__="5").cause
    assert "SHOAL_SET_name__first: " in refusal(GOOD, SHOAL_SET_name__first="5").cause


def test_overrides() -> None:
    recipe = parsed(
        GOOD,
        "budget.rounds=7",
        "strategy.preset=diloco",
        "strategy.outer.lr=0.5",
        "name=new name",
        "membership.lease_s=30",
        "strategy.codec={kind: int8, error_feedback: true}",
    )
    assert recipe.budget.rounds == 7 and recipe.name == "new name"
    assert recipe.strategy.outer.params() == {"lr": 0.5, "momentum": 0.9}
    assert recipe.membership.lease_s == 30 and recipe.strategy.codec.error_feedback


def test_the_environment_overrides_the_file_and_set_overrides_both() -> None:
    environment = {"SHOAL_SET_budget__rounds": "20", "SHOAL_SET_seed": "9", "OTHER": "x"}
    recipe = parsed(GOOD, "budget.rounds=30", **environment)
    assert recipe.budget.rounds == 30 and recipe.seed == 9


def test_the_process_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_SET_budget__rounds", "21")
    assert parse_recipe(json.dumps(GOOD)).budget.rounds == 21


@pytest.mark.parametrize(
    "setting", ["budget", "=5", ".=5", "budget..rounds=5", "budget.rounds.deep=5", "name.first=x", "a b"]
)
def test_a_setting_that_cannot_be_read(setting: str) -> None:
    error = refusal(GOOD, setting)
    assert error.code == "SH-RECIPE-02" and setting.split("=")[0] in error.cause


def test_a_setting_with_a_wrong_value_is_named_by_its_path() -> None:
    assert "budget.rounds" in refusal(GOOD, "budget.rounds=many").cause
    assert "budget.rouns" in refusal(GOOD, "budget.rouns=3").cause
    assert "seed" in refusal(GOOD, "seed=2026-13-45").cause


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    assert load_recipe(path, environment={}).seed == 3
    path.write_text("model: [")
    with pytest.raises(ShoalError, match=r"SH-RECIPE-01.*recipe\.yaml, line"):
        load_recipe(path, environment={})
    path.write_bytes(b"\xff\xfe\x00")
    for where in (path, tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ShoalError, match="SH-RECIPE-01"):
            load_recipe(where, environment={})


def test_a_log_with_a_broken_recipe_is_told_so() -> None:
    for text in ("{}", "noise", json.dumps({**GOOD, "seed": -1})):
        with pytest.raises(ShoalError, match="SH-RECIPE-0"):
            recipe_in_log(text)


def test_the_recipes_that_ship_load() -> None:
    folder = Path(__file__).parents[3] / "src" / "shoal" / "apps" / "recipes"
    paths = sorted(folder.glob("*.yaml"))
    assert len(paths) >= 2
    for path in paths:
        recipe = load_recipe(path, environment={})
        assert recipe_in_log(recipe.model_dump_json()) == recipe


def test_a_list_of_nodes_names_whole_ids() -> None:
    assert parsed(changed("membership.allow", ["ab" * 20])).membership.allow
    refused = refusal(changed("membership.allow", ["ab" * 20, "bob"]))
    assert refused.code == "SH-RECIPE-02" and "membership.allow.1: found 'bob'" in refused.cause
