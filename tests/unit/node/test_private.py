"""A node's privacy: what leaves was clipped, noised and counted before, and a spent budget stays spent."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from runlog.small_log import small_recipe

from shoal.base.errors import ShoalError
from shoal.node.learner import Global, Learner
from shoal.node.private import LEDGER, Privately, private_part
from shoal.replica.update import open_update
from shoal.runlog.entries import Assignment, DataRange
from shoal.runlog.view import Member
from shoal.strategy.recipe import Recipe, recipe_from
from shoal.wire.identity import Identity
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.toy import ToyTrainer, toy_layout

SIZE, ITEMS = 3000, 4096
ME, OTHER, THIRD = (Identity(name.ljust(32, b".")) for name in (b"me", b"other", b"third"))


def secrets() -> Any:
    numbers = itertools.count(1)
    return lambda size: next(numbers).to_bytes(size, "little")


def by_update(noise: float = 2.0, epsilon: float | None = None, clip: float = 0.5, **codec: Any) -> Recipe:
    strategy = {"preset": "local-sgd", "schedule": {"steps": 2}, "codec": {"kind": "none", **codec}}
    privacy = {"unit": "update", "noise": noise, "epsilon": epsilon, "clip": clip}
    return small_recipe(strategy=strategy, privacy=privacy)


def by_sample(**privacy: Any) -> Recipe:
    return recipe_from(
        {
            "model": {"kind": "mlp"},
            "data": {"source": "digits"},
            "inner": {"kind": "sgd", "batch_size": 64},
            "strategy": {"preset": "local-sgd", "schedule": {"steps": 2}},
            "budget": {"rounds": 10},
            "membership": {"min_nodes": 2},
            "privacy": privacy,
        }
    )


def part_of(recipe: Recipe, disk: SimDisk | None = None) -> Privately:
    found = private_part(recipe, ITEMS, secrets(), disk or SimDisk())
    assert found is not None
    return found


def learner_of(recipe: Recipe, disk: SimDisk | None = None) -> Learner:
    trainer = ToyTrainer(toy_layout(SIZE, 1), 8)
    learner = Learner(trainer, recipe, ITEMS, part_of(recipe, disk))
    learner.adopt(Global(params=torch.zeros(SIZE)))
    return learner


def train(learner: Learner, steps: int = 2) -> None:
    work = Assignment(node=ME.node, data=DataRange(0, 8 * steps), steps=steps, batch=8)
    learner.train(work, 0, 0, steps)


def values_in(learner: Learner, blob: bytes) -> torch.Tensor:
    opened = open_update(blob, learner.trainer.layout, (0,), learner._rules.codec)
    assert opened is not None
    out = torch.empty(SIZE)
    opened[0].decode(0, SIZE, 1.0, out)
    return out


def members(*identities: Identity) -> dict[Any, Member]:
    return {one.node: Member(one.node, one.public, "") for one in identities}


# --- whole updates ---------------------------------------------------------------------------------------


def test_an_update_is_clipped_and_noised_before_it_is_encoded() -> None:
    recipe = by_update(noise=0.1, clip=0.5)
    learner = learner_of(recipe)
    train(learner)
    raw = -learner.trainer.params().clone()  # From an anchor of zeros.
    assert float(raw.norm()) > 5, "far longer than the clip"
    sent = values_in(learner, learner.make_update((0,)).blob)
    noise = sent - raw * (0.5 / raw.norm())
    assert float(noise.std()) == pytest.approx(0.05, rel=0.1)
    assert learner.privately is not None and learner.privately.spent == 1


def test_short_updates_are_left_as_long_as_they_are() -> None:
    learner = learner_of(by_update(noise=0.1, clip=1e6))
    train(learner)
    raw = -learner.trainer.params().clone()
    sent = values_in(learner, learner.make_update((0,)).blob)
    assert float((sent - raw).std()) == pytest.approx(1e5, rel=0.1)


def test_noise_differs_between_updates_and_nodes_with_the_same_public_seed() -> None:
    recipe, sent = by_update(), []
    for fresh in (secrets(), lambda size: b"other".ljust(size, b".")):
        trainer = ToyTrainer(toy_layout(SIZE, 1), 8)
        learner = Learner(trainer, recipe, ITEMS, private_part(recipe, ITEMS, fresh, SimDisk()))
        learner.adopt(Global(params=torch.zeros(SIZE)))
        train(learner)
        sent.append(values_in(learner, learner.make_update((0,)).blob))
    assert float((sent[0] - sent[1]).std()) > 1


def test_the_residual_of_error_feedback_is_of_what_was_noised() -> None:
    recipe = by_update(noise=50.0, clip=1.0, kind="int8", error_feedback=True)
    learner = learner_of(recipe)
    train(learner)
    learner.make_update((0,))
    assert learner._residual is not None
    # Block int8 of values around 50 leaves about 0.2; of the clipped update itself it would leave 1e-4.
    assert float(learner._residual.std()) > 0.05


def test_no_loss_is_told_and_no_private_state_can_be_guessed_from_its_hash() -> None:
    recipe, states = by_update(), []
    for fresh in (secrets(), lambda size: b"other".ljust(size, b".")):
        learner = Learner(
            ToyTrainer(toy_layout(SIZE, 1), 8), recipe, ITEMS, private_part(recipe, ITEMS, fresh, SimDisk())
        )
        learner.adopt(Global(params=torch.zeros(SIZE)))
        train(learner)
        made = learner.make_update((0,))
        assert made.progress.loss_sum == 0 and made.progress.last_loss == 0
        states.append(learner.private_state())
    assert states[0].after != states[1].after, "though everything in it but the salt is the same"


# --- samples ---------------------------------------------------------------------------------------------


def test_parts_are_disjoint_cover_nearly_all_and_go_by_the_order_of_joining() -> None:
    recipe, drawn = by_sample(noise=1.0), []
    for identity in (ME, OTHER):
        privately = part_of(recipe)
        privately.take_place(members(ME, OTHER, THIRD), identity.node)
        drawn.append(np.unique(np.concatenate([privately._draw() for _ in range(400)])))
    assert not set(drawn[0]) & set(drawn[1])
    assert len(drawn[0]) == len(drawn[1]) == ITEMS // 2


def test_batches_vary_in_size_around_what_is_expected() -> None:
    privately = part_of(by_sample(noise=1.0))
    privately.take_place(members(ME), ME.node)
    sizes = [len(privately._draw()) for _ in range(200)]
    assert np.mean(sizes) == pytest.approx(64, rel=0.05) and np.std(sizes) > 5


def test_who_joins_when_all_parts_are_given_follows_only() -> None:
    privately = part_of(by_sample(noise=1.0))
    privately.take_place(members(ME, OTHER, THIRD), THIRD.node)
    assert "cut into 2 parts, and others have them all" in privately.refusal(1)


# --- the ledger ------------------------------------------------------------------------------------------


def test_a_spent_budget_stops_the_node_and_nothing_can_be_released_beyond_it() -> None:
    learner = learner_of(by_update(noise=3.0, epsilon=3.0))
    privately = learner.privately
    assert privately is not None and privately.guarantee.releases is not None
    for _ in range(privately.guarantee.releases):
        assert privately.refusal(2) == ""
        train(learner)
        learner.make_update((0,))
    assert "its privacy budget is spent: epsilon" in privately.refusal(2)
    assert privately.epsilon <= 3.0
    with pytest.raises(AssertionError, match="beyond the privacy budget"):
        learner.make_update((0,))


def test_the_ledger_survives_a_crash_and_a_lost_one_counts_what_the_log_shows() -> None:
    disk, recipe = SimDisk(), by_update()
    learner = learner_of(recipe, disk)
    train(learner)
    learner.make_update((0,))
    assert learner.privately is not None
    learner.privately.save(lambda point: None)
    assert part_of(recipe, disk).spent == 1
    fresh = part_of(recipe)
    known = members(ME)
    known[ME.node].updates, known[ME.node].steps = 7, 700
    fresh.take_place(known, ME.node)
    assert fresh.spent == 7


def test_a_ledger_that_rotted_does_not_give_the_budget_back() -> None:
    disk, recipe = SimDisk(), by_update()
    privately = part_of(recipe, disk)
    privately.spent = 200
    privately.save(lambda point: None)
    for place in range(disk.size(LEDGER) or 0):
        damaged = SimDisk()
        data = bytearray(disk.read(LEDGER))
        data[place] ^= 1
        damaged.write(LEDGER, bytes(data))
        with pytest.raises(ShoalError, match="SH-DISK-02"):
            part_of(recipe, damaged)


def test_without_a_privacy_section_there_is_nothing_of_it() -> None:
    assert private_part(small_recipe(), ITEMS, secrets(), SimDisk()) is None
