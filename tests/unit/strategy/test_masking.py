"""The recipe's `masking:` section: what it allows, and what it refuses and why."""

import json
from typing import Any

import pytest

from shoal.base.errors import ShoalError
from shoal.secagg.spec import MaskingSpec
from shoal.strategy.masking import for_member
from shoal.strategy.recipe import Recipe, parse_recipe

BASE: dict[str, Any] = {
    "model": {"kind": "mlp", "width": 16, "layers": 1},
    "data": {"source": "digits"},
    "inner": {"kind": "adamw", "lr": 0.003, "batch_size": 16},
    "strategy": {"preset": "local-sgd", "schedule": {"steps": 16}},
    "budget": {"rounds": 10},
}
MASKED = {"masking": {"members": 8}}


def _recipe(**changes: Any) -> Recipe:
    return parse_recipe(json.dumps({**BASE, **changes}), environment={})


def test_a_run_has_no_groups_unless_it_says_so() -> None:
    assert not _recipe().masking.on
    assert _recipe(**MASKED).masking.on


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"masking": {"members": 2}}, "each would know the other's update"),
        ({**MASKED, "audit": {"rate": 0.05}}, "cannot be run again"),
        ({**MASKED, "strategy": {"preset": "halos"}}, "fold each other's updates"),
        ({**MASKED, "strategy": {"preset": "streaming-diloco"}}, "merge 'add-delta' or overlap"),
        ({**MASKED, "strategy": {"preset": "gossip"}}, "merge 'pairs'"),
        (
            {**MASKED, "strategy": {"preset": "local-sgd", "schedule": {"steps": 7}}},
            "steps 7 for groups of 8",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ShoalError) as refused:
        _recipe(**changes)
    assert refused.value.code == "SH-RECIPE-03" and words in refused.value.cause, refused.value


def test_optimisers_that_take_the_real_step_are_refused() -> None:
    inner = {"kind": "sgd", "lr": 1.0, "batch_size": 16}
    strategy = {"preset": "ddp", "outer": {"kind": "sign"}}
    with pytest.raises(ShoalError, match="SH-RECIPE-03"):
        _recipe(**MASKED, inner=inner, strategy=strategy)


@pytest.mark.parametrize(
    "field", [{"threshold": 0.4}, {"limit": 0}, {"members": 129}, {"wait_s": 0}, {"mask": 1}]
)
def test_fields_out_of_range_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ShoalError, match="SH-RECIPE-02"):
        _recipe(masking={"members": 8, **field})


def test_the_robust_rule_and_a_codec_with_error_feedback_work_on_the_groups_means() -> None:
    codec = {"kind": "two-bit", "error_feedback": True}
    strategy = {**BASE["strategy"], "aggregate": {"kind": "robust"}, "codec": codec}
    recipe = _recipe(**MASKED, strategy=strategy, membership={"min_nodes": 10})
    member = for_member(recipe.strategy)
    assert (member.codec.kind, member.codec.error_feedback) == ("none", False)
    assert recipe.strategy.codec.kind == "two-bit"


def test_the_threshold_is_always_more_than_half() -> None:
    for share in (0.5, 0.66, 0.9, 1.0):
        for members in range(3, 129):
            threshold = MaskingSpec(members=3, threshold=share).threshold_of(members)
            assert members < 2 * threshold <= 2 * members
    assert MaskingSpec().threshold_of(16) == 11
