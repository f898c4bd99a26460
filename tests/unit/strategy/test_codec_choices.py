"""Codecs among which the planner may choose: what is refused, and what a recipe without them looks like."""

from typing import Any

import pytest
import yaml

from shoal.base.errors import ShoalError
from shoal.strategy.recipe import Recipe, parse_recipe, recipe_in_log

INT8 = {"kind": "int8", "error_feedback": True}


def parse(codec: dict[str, Any], planner: str = "aware", **strategy: Any) -> Recipe:
    recipe = {
        "model": {"kind": "mlp", "width": 8, "layers": 1},
        "data": {"source": "digits"},
        "inner": {"kind": "adamw", "lr": 0.01, "batch_size": 4},
        "strategy": {"preset": "local-sgd", "codec": codec, "planner": {"kind": planner}, **strategy},
        "budget": {"rounds": 10},
    }
    return parse_recipe(yaml.safe_dump(recipe), environment={})


def test_a_ladder_of_codecs_is_what_the_fold_knows() -> None:
    ladder = [{"kind": "int4"}, {"kind": "two-bit", "chunk": 512}, {"kind": "chunked-top-k", "density": 0.05}]
    recipe = parse({**INT8, "choices": ladder})
    rules = recipe.strategy.fold_rules()
    assert [rules.codec_at(0, number) for number in range(4)] == [rules.codec, *rules.choices]
    assert recipe_in_log(recipe.model_dump_json()) == recipe


def test_a_recipe_without_choices_is_written_as_before() -> None:
    assert "choices" not in parse(INT8).model_dump_json()


@pytest.mark.parametrize(
    ("codec", "planner", "said"),
    [
        ({**INT8, "choices": [{"kind": "int4"}]}, "naive", "nobody would choose"),
        ({"kind": "int8", "choices": [{"kind": "int4"}]}, "aware", "error_feedback"),
        (
            {**INT8, "choices": [{"kind": "fp16"}]},
            "aware",
            "'fp16' has 16 bits a value, not fewer than the 8.1",
        ),
        ({**INT8, "choices": [{"kind": "two-bit"}, {"kind": "int4"}]}, "aware", "'int4' has 4.25 bits"),
    ],
)
def test_unsound_ones_are_refused(codec: dict[str, Any], planner: str, said: str) -> None:
    with pytest.raises(ShoalError, match=rf"SH-RECIPE-03.*codec\.choices.*{said}"):
        parse(codec, planner)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ([{"kind": "three-bit"}], r"choices\.0.*allowed: .*two-bit"),
        ([{"kind": "int4"}, {"kind": "two-bit", "block": 3}], r"choices\.1.*no such parameter"),
        ([{"kind": "int4", "error_feedback": True}], r"choices\.0.*no such parameter"),
        ([{"kind": "int4"}] * 9, "choices"),
    ],
)
def test_wrong_ones_are_refused_with_their_path(choices: list[Any], said: str) -> None:
    with pytest.raises(ShoalError, match=rf"SH-RECIPE-02.*strategy\.codec.*{said}"):
        parse({**INT8, "choices": choices})
