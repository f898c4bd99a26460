"""A strategy of two levels: what a region's recipe is, and what cannot be."""

from typing import Any

import pytest
from coordinator.desk import Desk, members, open_round
from runlog.small_log import NODES, blob_id, small_recipe

from shoal.apps.joining import check_place
from shoal.base.errors import ShoalError
from shoal.coordinator.events import GraftAsked
from shoal.runlog.entries import Graft, Head, Plan, Seal
from shoal.strategy.recipe import Recipe, recipe_in_log

A, B = NODES[:2]


def _recipe(region: dict[str, Any] | None = None, **strategy: Any) -> Recipe:
    section = {"preset": "halos", **strategy}
    if region is not None:
        section["region"] = region
    return small_recipe(strategy=section, membership=members(2))


def test_the_preset_has_two_levels_and_either_may_be_overridden() -> None:
    plain = _recipe().strategy
    assert plain.seal.kind == "arrivals" and plain.region is not None and plain.region.preset == "diloco"
    assert plain.region.schedule.steps == 15 and plain.region.seal.kind == "all-or-deadline"
    changed = _recipe({"schedule": {"overlap": 2}, "merge": {"kind": "add-delta"}}).strategy.region
    assert changed is not None and changed.schedule.steps == 15 and changed.schedule.overlap == 2
    other = _recipe({"preset": "gossip"}).strategy.region
    assert other is not None and other.merge.kind == "pairs"


def test_a_regions_recipe_is_its_parents_with_samples_of_its_own() -> None:
    recipe = _recipe()
    north, south = recipe.for_region("north", 3), recipe.for_region("south")
    assert north.strategy == recipe.strategy.region and north.model == recipe.model
    assert len({recipe.seed, north.seed, south.seed}) == 3
    assert north.membership.min_nodes == 3 and south.membership.min_nodes == 1
    assert recipe_in_log(north.model_dump_json()) == north, "what a region's genesis holds loads"


@pytest.mark.parametrize(
    ("region", "why"),
    [
        ({"schedule": {"fragments": 2}}, "fragments"),
        ({"schedule": {"steps_last": 9}}, "no budget of its own"),
        ({"outer": {"kind": "nesterov", "decay": "cosine"}}, "no budget of its own"),
        ({"seal": {"kind": "arrivals"}, "schedule": {"order": "rotate", "fragments": 1}}, "rotate"),
    ],
)
def test_what_a_region_cannot_have(region: dict[str, Any], why: str) -> None:
    with pytest.raises(ShoalError) as caught:
        _recipe(region)
    assert caught.value.code == "SH-RECIPE-03" and why in caught.value.cause


def test_a_hub_sends_no_gradient() -> None:
    gradient = {"kind": "sgd", "lr": 1.0}
    section = {"preset": "halos", "schedule": {"steps": 1, "overlap": 0}, "outer": {"kind": "sign"}}
    with pytest.raises(ShoalError) as caught:
        small_recipe(strategy=section, membership=members(2), inner=gradient)
    assert (
        caught.value.code == "SH-RECIPE-03"
        and "a hub sends what its region has trained" in caught.value.cause
    )


def test_a_regions_members_train_as_its_own_strategy_needs() -> None:
    with pytest.raises(ShoalError) as caught:
        small_recipe(
            model={"kind": "mlp", "width": 8, "layers": 1},
            data={"source": "digits"},
            inner={"kind": "adamw", "lr": 0.01, "batch_size": 4},
            strategy={"preset": "halos", "region": {"preset": "demo", "outer": {"decay": "none"}}},
        )
    assert caught.value.code == "SH-RECIPE-03" and caught.value.cause.partition("region: ")[2]


def test_single_nodes_are_sent_to_a_region() -> None:
    with pytest.raises(ShoalError) as caught:
        check_place(_recipe())
    assert caught.value.code == "SH-JOIN-12"
    check_place(_recipe().for_region("north"))
    with pytest.raises(ShoalError, match="no regions"):
        _recipe().for_region("north").for_region("further north")


# --- the region's coordinator ------------------------------------------------------------------------------


def _region_desk(monkeypatch: pytest.MonkeyPatch, recipe: Recipe | None = None) -> Desk:
    import msgspec
    from runlog import small_log

    plain = small_log.genesis_of
    monkeypatch.setattr(
        small_log, "genesis_of", lambda *a: msgspec.structs.replace(plain(*a), parent="9" * 32)
    )
    return open_round(A, B, recipe=recipe)


def _asked(position: int) -> GraftAsked:
    graft = Graft(parent=Head(position, "c" * 64), blob=blob_id("graft", position), size_bytes=50)
    return GraftAsked(graft)


def test_news_enter_when_the_round_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = _region_desk(monkeypatch)
    desk.step(_asked(3))
    assert desk.appended() == [] and _asked(3).graft.blob in desk.machine.needed_blobs(), "it is kept"
    desk.seal_round(A, B)
    seal, graft, plan = desk.appended()
    assert isinstance(seal, Seal) and isinstance(graft, Graft) and isinstance(plan, Plan)
    desk.step(_asked(3))
    desk.seal_round(A, B)
    assert not [body for body in desk.appended() if isinstance(body, Graft)], "once"
    desk.check()


def test_where_nodes_meet_in_pairs_news_wait_for_everybodys_round(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = {"preset": "gossip", "codec": {"kind": "none"}, "merge": {"kind": "pairs", "global_every": 2}}
    desk = _region_desk(monkeypatch, small_recipe(strategy=pairs, membership=members(2)))
    desk.step(_asked(3))
    desk.seal_round(A, B)
    assert not [body for body in desk.appended() if isinstance(body, Graft)]
    desk.beat(A, B)
    desk.seal_round(A, B)
    assert [body for body in desk.appended() if isinstance(body, Graft)]
