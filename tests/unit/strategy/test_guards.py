"""A recipe whose first round could not outvote its liars is refused, with the numbers."""

import pytest

from shoal.base.errors import ShoalError
from shoal.strategy.recipe import Recipe, parse_recipe

BASE = "model: {kind: mlp}\ndata: {source: digits}\ninner: {kind: adamw}\nbudget: {rounds: 3}\n"


def load(aggregate: str, nodes: int) -> Recipe:
    text = f"{BASE}strategy: {{aggregate: {aggregate}}}\nmembership: {{min_nodes: {nodes}}}\n"
    return parse_recipe(text, environment={})


@pytest.mark.parametrize(
    ("aggregate", "least"),
    [
        ("{kind: krum, f: 2}", 7),
        ("{kind: multi-krum, f: 3}", 9),
        ("{kind: bulyan, f: 2}", 11),
        ("{kind: trimmed-mean, f: 3}", 7),
        ("{kind: median, f: 1}", 3),
        ("{kind: geometric-median, f: 4, nnm: true}", 9),
        ("{kind: centred-clipping, f: 1}", 3),
        ("{kind: krum, f: 2, bucket: 2}", 13),
        ("{kind: robust, f: 3}", 7),
        ("{kind: krum, f: 0}", 3),
    ],
)
def test_one_node_fewer_is_refused(aggregate: str, least: int) -> None:
    assert load(aggregate, least).membership.min_nodes == least
    with pytest.raises(ShoalError) as refused:
        load(aggregate, least - 1)
    assert refused.value.code == "SH-RECIPE-03"
    assert f"membership.min_nodes = {least - 1}" in refused.value.cause


def test_the_refusal_has_the_guard_and_what_it_comes_to() -> None:
    with pytest.raises(ShoalError, match=r"bulyan needs n >= 4f\+3: with f = 2 that is 11"):
        load("{kind: bulyan, f: 2}", 10)


def test_a_share_of_too_few_is_nobody() -> None:
    with pytest.raises(
        ShoalError, match=r"f = 0.3 of membership.min_nodes = 3 is nobody; raise min_nodes to 4"
    ):
        load("{kind: trimmed-mean}", 3)
    assert load("{kind: trimmed-mean}", 4)
    assert load("{kind: robust}", 10)


def test_a_share_is_of_the_nodes_and_not_a_little_less() -> None:
    with pytest.raises(ShoalError, match="with f = 29 that is 119"):
        load("{kind: bulyan, f: 0.29}", 100)


def test_the_mean_needs_nobody() -> None:
    assert load("{kind: mean}", 1)
