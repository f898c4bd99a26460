"""What a person wrote is read as it was meant, or answered: YAML, numbers, true and false."""

import pytest
import yaml

from shoal.base.errors import ShoalError
from shoal.strategy.recipe import parse_recipe

from .recipes import GOOD, changed, parsed, refusal

NOT_YAML = [
    "a: [1",
    "a: b: c",
    "\tkey: 1",
    "a: 'x",
    "a: !!python/object:os.system {}",
    "a: \x00",
    "&a [*a, *b]",
]


@pytest.mark.parametrize("text", [*NOT_YAML, "", "- 1", "5", "null", "'text'"])
def test_what_is_not_yaml_or_not_a_mapping(text: str) -> None:
    with pytest.raises(ShoalError, match="SH-RECIPE-01"):
        parse_recipe(text, environment={})


@pytest.mark.parametrize(
    "text",
    ["name: 2026-13-45", "a: " + "[" * 3000, "? {a: b}\n: c", "name: 0b"],
    ids=["no such day", "deep", "a mapping as key", "no number"],
)
def test_yaml_that_breaks_the_reader_is_answered_too(text: str) -> None:
    with pytest.raises(ShoalError, match=r"SH-RECIPE-0[12]"):
        parse_recipe(text, environment={})


@pytest.mark.parametrize(
    "text",
    ["a: !!bool maybe", "a: !!timestamp now", "a: !!int ''", "a: " + "9" * 5000, "a: !!float x"],
)
def test_a_tag_that_does_not_fit_its_value_is_answered_too(text: str) -> None:
    with pytest.raises(ShoalError, match=r"SH-RECIPE-01.*recipe has a value|SH-RECIPE-02"):
        parse_recipe(text, environment={})


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: " + "{b: " * 40 + "1" + "}" * 40], ids=["loop", "deep"])
def test_nesting_is_bounded(text: str) -> None:
    with pytest.raises(ShoalError, match=r"SH-RECIPE-02.*nested"):
        parse_recipe(text, environment={})


def test_the_line_of_a_mistake_is_named() -> None:
    with pytest.raises(ShoalError, match="line 3"):
        parse_recipe("name: x\nseed: 1\nmodel: a: b\n", environment={})


@pytest.mark.parametrize(
    "text", ["budget: {rounds: 3}", "inner: {lr: 1.0, lr: 2.0}", "? [a]\n: 1\n? [a]\n: 2"]
)
def test_a_field_that_is_given_twice_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ShoalError, match=r"SH-RECIPE-01.*line \d+") as refused:
        parse_recipe(f"name: x\nbudget: {{rounds: 5}}\n{text}\n", environment={})
    assert "twice" in refused.value.cause or "unhashable" in refused.value.cause


def test_a_section_may_be_merged_into_another_and_overridden() -> None:
    text = yaml.safe_dump({key: value for key, value in GOOD.items() if key not in ("inner", "budget")})
    text += "budget: &b {rounds: 5}\ninner: {<<: {lr: 0.5, kind: sgd}, <<: {batch_size: 4}, lr: 0.25}\n"
    recipe = parse_recipe(text, environment={})
    assert recipe.inner.batch_size == 4 and recipe.inner.lr == 0.25  # type: ignore[union-attr]


@pytest.mark.parametrize("number", ["1e-3", "1E-3", "+1.e-03", "0.1e-2", ".1e-2", "1.0e-3", '"1e-3"'])
def test_a_number_may_be_written_as_json_and_people_write_it(number: str) -> None:
    assert parsed(GOOD, f"inner.lr={number}").inner.lr == 1e-3  # type: ignore[union-attr]
    if not number.startswith('"'):
        assert parsed(GOOD, f"strategy.outer={{kind: sgd, lr: {number}}}").strategy.outer.params() == {
            "lr": 1e-3
        }


def test_text_that_only_begins_like_a_number_is_text() -> None:
    assert parsed(GOOD, "name=e3 of 1e").name == "e3 of 1e"


@pytest.mark.parametrize("value", ["1e400", '"1e400"', "inf", '"nan"', ".inf"])
@pytest.mark.parametrize("path", ["inner.clip", "inner.lr", "data.validation_fraction", "membership.lease_s"])
def test_no_number_is_infinite_however_it_is_written(path: str, value: str) -> None:
    error = refusal(GOOD, f"{path}={value}")
    assert error.code == "SH-RECIPE-02" and path in error.cause


@pytest.mark.parametrize("number", ["0x" + "f" * 6000, ":".join(["59"] * 3000)])
def test_a_number_too_long_to_be_shown_is_refused(number: str) -> None:
    error = refusal(GOOD, f"seed={number}")
    assert error.code == "SH-RECIPE-02" and "seed: found a whole number of" in error.cause


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize(
    "path",
    [
        "seed",
        "budget.rounds",
        "budget.seconds",
        "model.width",
        "data.validation_fraction",
        "inner.lr",
        "strategy.schedule.steps",
        "strategy.codec.feedback_decay",
        "membership.min_nodes",
        "storage.retention.last",
        "credit.budget_micro",
        "audit.rate",
        "masking.members",
        "privacy.noise",
    ],
)
def test_true_and_false_are_no_numbers(path: str, truth: bool) -> None:
    error = refusal(changed(path, truth))
    assert error.code == "SH-RECIPE-02" and f"recipe: {path}: found {truth}; allowed: a valid" in error.cause


def test_true_and_false_are_no_numbers_in_a_list_or_a_setting_either() -> None:
    assert (
        "inner.betas.1: found True; allowed: a valid number" in refusal(GOOD, "inner.betas=[0, true]").cause
    )
    assert "budget.rounds: found True; allowed: a valid integer" in refusal(GOOD, "budget.rounds=true").cause
    assert "seed: found False" in refusal(GOOD, SHOAL_SET_seed="false").cause
    cause = refusal(GOOD, "budget={rounds: true, seconds: -1}").cause
    assert "budget.rounds: found True" in cause and "budget.seconds: found -1" in cause


def test_what_is_true_or_false_may_be_written_so() -> None:
    assert parsed(GOOD).storage.archive and not parsed(changed("storage.archive", False)).storage.archive
    assert not parsed(GOOD, "storage.archive=false").storage.archive
    assert not parsed(GOOD, SHOAL_SET_storage__archive="false").storage.archive
    assert parsed(GOOD, SHOAL_SET_strategy__codec__error_feedback="true").strategy.codec.error_feedback
