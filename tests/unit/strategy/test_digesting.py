"""Digests by the bytes: when they begin, when they end, and with what they do not go."""

from __future__ import annotations

from typing import Any

import pytest
from runlog.small_log import COORDINATOR, NODES, STEPS, Clerk, make_claim, make_receipt, small_recipe

from shoal.aggregate import AGGREGATORS
from shoal.aggregate.base import Guarded
from shoal.base.errors import ShoalError
from shoal.runlog.entries import Accepted, Digests
from shoal.strategy.digesting import WORTH, Sharding, costs, sharding_of
from shoal.strategy.planning import Measured, make_plan
from shoal.strategy.recipe import Recipe
from shoal.wire.identity import Identity
from shoal.wire.signed import sign

A, B, C = NODES[:3]


def _recipe(
    codec: dict[str, Any] | None = None, strategy: dict[str, Any] | None = None, **digest: Any
) -> Recipe:
    values = {
        "preset": "local-sgd",
        "schedule": {"steps": 3},
        "codec": codec or {"kind": "none"},
        "seal": {"kind": "all-or-deadline", "deadline_s": 10.0},
        "digest": {"kind": "none", "folders": 3, "shards": 8, **digest},
        **(strategy or {}),
    }
    return small_recipe(strategy=values)


def _view(size_bytes: int = 100, folders: int = 0) -> Any:
    """A log whose last seal has updates of this size."""
    clerk = Clerk()
    clerk.found()
    clerk.join(A, B, C)
    clerk.append(clerk.plan_body(A, B, folders=folders, shards=8 if folders else 0))
    clerk.append(clerk.seal_body(accepted=tuple(_accepted(clerk, node, size_bytes) for node in (A, B))))
    if folders:
        clerk.append(Digests(seal=clerk.view.at, items=()))
    return clerk.view


def _accepted(clerk: Clerk, node: Identity, size_bytes: int) -> Accepted:
    claim = make_claim(clerk.view, node, size_bytes=size_bytes)
    receipt = make_receipt(COORDINATOR, claim.blob, size_bytes=size_bytes)
    return Accepted(claim=sign(node, claim), weight=STEPS, receipts=(receipt,))


def test_costs_are_bytes_that_a_node_fetches() -> None:
    """Sixteen values: a digest of codec `none` is 64 bytes."""
    updates, digests = costs(_recipe(), _view(100), 10)
    assert updates == 900 and digests == 900 * 3 // 10 + 64
    assert costs(_recipe(folders=1), _view(100), 10) == (900, 90 + 64)
    assert costs(_recipe(), _view(100), 2) == (100, 100 + 64), "two folders of two"


@pytest.mark.parametrize(
    ("nodes", "through"), [(1, False), (2, False), (3, False), (4, False), (5, True), (64, True)]
)
def test_digests_begin_where_they_are_clearly_fewer_bytes(nodes: int, through: bool) -> None:
    recipe, view = _recipe(), _view(100)
    updates, digests = costs(recipe, view, nodes)
    assert (updates > WORTH * digests) == through
    chosen = sharding_of(recipe, view, nodes, None)
    assert (chosen.folders, chosen.shards) == ((3, 8) if through else (0, 0))
    assert bool(chosen.reason) == through


def test_they_go_on_as_long_as_they_are_fewer() -> None:
    recipe = _recipe()
    updates, digests = costs(recipe, _view(100), 4)
    assert digests < updates < WORTH * digests
    assert sharding_of(recipe, _view(100, folders=3), 4, None).folders == 3
    assert sharding_of(recipe, _view(100), 4, None).folders == 0
    assert sharding_of(recipe, _view(100, folders=3), 3, None).folders == 0


def test_what_a_round_hides_anyway_needs_no_digests() -> None:
    recipe = _recipe()
    assert sharding_of(recipe, _view(), 64, 0.01).folders == 0
    assert sharding_of(recipe, _view(), 64, 0.2).folders == 3
    assert sharding_of(recipe, _view(folders=3), 64, 0.01).folders == 3, "it is hidden because of them"
    assert Measured(step_s=1.0, idle_s=2.0).idle_share(8) == 0.2
    assert Measured(step_s=1.0).idle_share(8) is None


def test_always_and_never_and_not_before_anything_is_known() -> None:
    clerk = Clerk()
    clerk.found()
    assert sharding_of(_recipe(), clerk.view, 64, None) == Sharding()
    assert sharding_of(_recipe(when="always"), clerk.view, 1, None).folders == 3
    assert sharding_of(_recipe(when="always"), clerk.view, 0, None).folders == 0, "a round without work"
    assert sharding_of(_recipe(folders=0, when="always"), _view(), 64, None).folders == 0
    assert sharding_of(small_recipe(), _view(), 64, None) == Sharding()


def test_warm_up_rounds_are_folded_by_everybody() -> None:
    recipe = _recipe(codec={"kind": "int8", "warmup_rounds": 2}, when="always")
    clerk = Clerk()
    clerk.found()
    clerk.join(A)
    for place in range(4):
        plan = make_plan(recipe, clerk.view, [A.node], "")
        assert plan.folders == (3 if place >= 2 else 0)
        clerk.append(clerk.plan_body(A))
        clerk.seal(A)


def test_a_plan_says_so_and_a_later_one_of_the_round_follows() -> None:
    recipe, clerk = _recipe(when="always"), Clerk()
    clerk.found()
    clerk.join(A, B)
    plan = make_plan(recipe, clerk.view, [A.node], "")
    assert plan.reason == "1 ready node, equal work; through digests of 3 folders"
    clerk.append(plan)
    again = make_plan(_recipe(folders=0), clerk.view, [B.node], "")
    assert (again.folders, again.shards) == (3, 8)
    clerk.append(again)


# --- recipes ----------------------------------------------------------------------------------------------

LATE = {"kind": "quorum", "quorum": 0.5, "grace_s": 1.0, "deadline_s": 10.0, "staleness": 1}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: _recipe(strategy={"seal": LATE}), "late updates"),
        (lambda: _recipe(strategy={"seal": {"kind": "arrivals", "min_interval_s": 1.0}}), "late updates"),
        (lambda: _recipe(strategy={"merge": {"kind": "pairs", "global_every": 2}}), "partners need"),
        (lambda: _recipe(kind="chunked-top-k"), "packed by the machine's zlib"),
        (lambda: _recipe(kind="powersgd"), "other bytes on another machine"),
        (lambda: _recipe(folders=16), "digest.folders: found 16"),
        (lambda: _recipe(shards=0), "digest.shards: found 0"),
        (lambda: _recipe(when="never"), "digest.when: found"),
    ],
)
def test_what_does_not_go_with_folders_is_refused(make: Any, why: str) -> None:
    with pytest.raises(ShoalError, match=why):
        make()


def test_a_rule_against_liars_needs_more_than_one_folder() -> None:
    guarded = sorted(name for name, rule in AGGREGATORS.items() if isinstance(rule(), Guarded))
    assert guarded
    aggregate = {"aggregate": {"kind": guarded[0]}}
    with pytest.raises(ShoalError, match="could say what it likes"):
        _recipe(strategy=aggregate, folders=1)


def test_without_folders_everything_goes_as_before() -> None:
    for changes in ({"seal": LATE}, {"digest": {"kind": "chunked-top-k"}}):
        values = {"preset": "local-sgd", "codec": {"kind": "none"}, "digest": {"kind": "int8"}, **changes}
        rules = small_recipe(strategy=values).strategy.fold_rules()
        assert rules.digest is not None and rules.sharded is None and "digest_residual" in rules.slots
    rules = _recipe().strategy.fold_rules()
    assert rules.digest is None and rules.sharded is not None and "digest_residual" not in rules.slots
