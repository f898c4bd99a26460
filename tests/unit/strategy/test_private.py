"""What a recipe's privacy comes to, and what it is refused with, in words and numbers."""

from typing import Any

import pytest

from shoal.base.errors import ShoalError
from shoal.strategy.private import guarantee_of
from shoal.strategy.recipe import Recipe, recipe_from

ITEMS = 1000


def recipe(privacy: dict[str, Any] | None, **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "model": {"kind": "mlp"},
        "data": {"source": "digits"},
        "inner": {"kind": "sgd", "batch_size": 50},
        "strategy": {"preset": "local-sgd", "schedule": {"steps": 5}},
        "budget": {"rounds": 20},
        "membership": {"min_nodes": 4},
        "privacy": privacy,
    }
    return recipe_from({**values, **changes})


def refusal(privacy: dict[str, Any], **changes: Any) -> ShoalError:
    with pytest.raises(ShoalError) as refused:
        recipe(privacy, **changes)
    return refused.value


def test_noise_is_found_for_the_planned_steps_of_a_nodes_own_part() -> None:
    guarantee = guarantee_of(recipe({"epsilon": 8}), ITEMS)
    assert guarantee is not None and guarantee.releases is not None
    assert (guarantee.parts, guarantee.part_items, guarantee.mechanism.rate) == (4, 250, 0.2)
    assert guarantee.releases >= 100, "20 rounds of 5 steps fit"
    assert 7.8 < guarantee.epsilon(100) <= 8
    assert guarantee.exhausted(100, guarantee.releases - 100) == ""
    spent = guarantee.exhausted(guarantee.releases, 1)
    assert spent == "its privacy budget is spent: epsilon 7.99 of 8 (delta 1e-05)"


def test_whole_updates_are_released_once_a_round_with_nothing_drawn() -> None:
    guarantee = guarantee_of(recipe({"unit": "update", "epsilon": 8}), ITEMS)
    assert guarantee is not None and guarantee.mechanism.rate == 1 and guarantee.releases == 20


def test_with_noise_alone_epsilon_is_counted_without_an_end() -> None:
    guarantee = guarantee_of(recipe({"noise": 2.0}), ITEMS)
    assert guarantee is not None and guarantee.releases is None and guarantee.noise == 2
    assert guarantee.exhausted(10**6, 10**6) == "" and guarantee.epsilon(10) > 0
    assert guarantee_of(recipe(None), ITEMS) is None


@pytest.mark.parametrize(
    ("privacy", "changes", "words"),
    [
        ({"epsilon": 8}, {"audit": {"rate": 0.05}}, "audit.rate above 0: noise is drawn in secret"),
        ({"epsilon": 8}, {"budget": {"seconds": 60}}, "epsilon 8 without noise needs budget.rounds"),
        ({"epsilon": 8}, {"strategy": {"preset": "halos"}}, "strategy.region"),
        ({"epsilon": 8}, {"strategy": {"planner": {"kind": "aware"}}}, "planner aware"),
        ({"epsilon": 8}, {"membership": {"scaling": "batch"}}, "membership.scaling batch"),
        ({"epsilon": 8}, {"inner": {"kind": "sgd", "compile": True}}, "inner.compile"),
        ({"epsilon": 8, "unit": "update", "parts": 2}, {}, "parts has a meaning with unit sample only"),
        (
            {"epsilon": 8},
            {
                "model": {"kind": "own"},
                "data": {"source": "own", "items": 9},
                "inner": {"kind": "own"},
            },
            "own program",
        ),
    ],
)
def test_what_would_break_the_promise_is_refused_at_load(
    privacy: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    found = refusal(privacy, **changes)
    assert found.code == "SH-RECIPE-03" and words in found.cause


def test_error_feedback_is_allowed_since_what_it_keeps_is_noised_already() -> None:
    strategy = {"preset": "local-sgd", "codec": {"kind": "int8", "error_feedback": True}}
    for unit in ("sample", "update"):
        assert recipe({"epsilon": 8, "unit": unit}, strategy=strategy).privacy is not None


def test_one_of_epsilon_and_noise_is_needed() -> None:
    assert "give epsilon, or noise" in refusal({}).cause


@pytest.mark.parametrize(
    ("privacy", "items", "words"),
    [
        (
            {"epsilon": 8},
            199,
            "each of 4 parts of the training data has 49 samples, fewer than a batch of 50",
        ),
        ({"epsilon": 8, "delta": 0.01}, ITEMS, "with 250 samples in a part, delta 0.01"),
        ({"epsilon": 0.1, "noise": 0.3}, ITEMS, "one round of 5 releases costs epsilon"),
    ],
)
def test_what_cannot_be_had_on_the_data_is_refused_with_the_numbers(
    privacy: dict[str, Any], items: int, words: str
) -> None:
    with pytest.raises(ShoalError) as refused:
        guarantee_of(recipe(privacy), items)
    assert refused.value.code == "SH-PRIVACY-01" and words in refused.value.cause
