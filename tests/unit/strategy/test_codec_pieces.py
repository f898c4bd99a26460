"""A codec that a recipe names wrongly is refused when the recipe is loaded, with the field's path."""

from typing import Any

import pytest
import torch
import yaml

from shoal.base.errors import ShoalError
from shoal.codec import CODECS
from shoal.codec.feedback import encode_with_feedback
from shoal.strategy.recipe import Recipe, parse_recipe


def parse(codec: dict[str, Any], **strategy: Any) -> Recipe:
    recipe = {
        "model": {"kind": "mlp", "width": 8, "layers": 1},
        "data": {"source": "digits"},
        "inner": {"kind": "adamw", "lr": 0.01, "batch_size": 4},
        "strategy": {"preset": "local-sgd", "codec": codec, **strategy},
        "budget": {"rounds": 10},
    }
    return parse_recipe(yaml.safe_dump(recipe), environment={})


@pytest.mark.parametrize("kind", sorted(CODECS))
def test_every_codec_can_be_named(kind: str) -> None:
    recipe = parse({"kind": kind, "error_feedback": True, "feedback_decay": 0.9})
    assert recipe.strategy.codec.kind == kind and recipe.strategy.codec.feedback_decay == 0.9


@pytest.mark.parametrize(
    ("codec", "said"),
    [
        ({"kind": "two-bit", "chunk": 100}, "power of two"),
        ({"kind": "two-bit", "block": 128}, "no such parameter; allowed: chunk"),
        ({"kind": "int4", "block": 1.5}, "a whole number"),
        ({"kind": "one-bit", "chunk": True}, "a whole number"),
        ({"kind": "powersgd", "rank": 0}, "rank must be from 1 to 64"),
        ({"kind": "dct", "chunk": 1024}, "at most 256"),
        ({"kind": "dct", "then": 8}, "text"),
        ({"kind": "chain", "then": "chain"}, "then must be one of"),
        ({"kind": "chain", "density": 0.9}, "density must be above 0 and at most 0.25"),
        ({"kind": "three-bit"}, "allowed: .*two-bit"),
        ({"kind": "int8", "error_feedback": True, "feedback_decay": 1.5}, "feedback_decay"),
        ({"kind": "int8", "error_feedback": True, "feedback_decay": float("nan")}, "feedback_decay"),
        ({"kind": "int8", "feedback_decay": 0.5}, "feedback_decay.*error_feedback: true"),
        ({"kind": "random-k", "scaled": True, "error_feedback": True}, "scaled.*would grow every time"),
    ],
)
def test_a_wrong_one_is_refused_with_its_path(codec: dict[str, Any], said: str) -> None:
    with pytest.raises(ShoalError, match=rf"SH-RECIPE-02.*strategy\.codec.*{said}"):
        parse(codec)


def test_what_has_a_residual_takes_no_codec_that_says_more_than_there_was() -> None:
    scaled = {"kind": "random-k", "scaled": True}
    assert parse(scaled).strategy.codec.kind == "random-k"
    choices = {"kind": "int8", "error_feedback": True, "choices": [scaled]}
    with pytest.raises(ShoalError, match=r"SH-RECIPE-02.*codec\.choices\.0\.scaled"):
        parse(choices)
    with pytest.raises(ShoalError, match=r"SH-RECIPE-02.*digest\.scaled"):
        parse({"kind": "int8"}, digest=scaled)


def test_why_scaled_values_and_a_residual_do_not_go_together() -> None:
    codec, update, residual = CODECS["random-k"](scaled=True), torch.ones(1000), torch.zeros(1000)
    for seed in range(20):
        _, residual = encode_with_feedback(codec, update, residual, seed)
    assert residual.norm() > 1e6 * update.norm()
