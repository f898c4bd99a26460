"""Masked groups in the simulated world: hubs take part in a run with sums, whoever drops out."""

import asyncio

import numpy as np
import torch
from msgspec.structs import replace

from shoal.base.disk import SubDisk
from shoal.base.ids import BlobId
from shoal.data.assignment import sample_indices
from shoal.group.messages import Call, Task
from shoal.replica.blobs import BlobStore
from shoal.replica.fold import PLAIN
from shoal.replica.update import open_update
from shoal.runlog.entries import Claim, DataRange
from shoal.secagg.fixed import FixedPoint
from shoal.secagg.terms import Terms

from .groups import Crowd, masked_recipe
from .regions import RUN

TARGET = torch.linspace(-1, 1, 40)


def _distance(crowd: Crowd, group: str) -> float:
    state = crowd.group(group).state
    assert state is not None
    return float((state.params - TARGET).norm()) / float(TARGET.norm())


def test_two_groups_train_one_model_by_their_sums() -> None:
    crowd = Crowd({"a": 5, "b": 5})

    async def story() -> None:
        crowd.start()
        await crowd.rounds(6)

    crowd.play(story)
    hubs = {crowd.group(name).identity.node for name in "ab"}
    updates = [update for step in crowd.view.path for update in step.updates]
    assert {update.claim.node for update in updates} == hubs
    assert max(update.claim.samples for update in updates) == 30
    assert _distance(crowd, "a") < 0.3
    assert all(crowd.member(f"{group}{number}").rounds >= 4 for group in "ab" for number in range(5))


def test_a_hubs_update_is_the_mean_of_what_its_members_trained() -> None:
    """The first round, done again without masks: from the same state, each member its own samples."""
    crowd = Crowd(
        {"a": 4}, recipe=masked_recipe(membership={"min_nodes": 1, "lease_s": 4.0, "heartbeat_s": 1.0})
    )

    async def story() -> None:
        crowd.start()
        await crowd.rounds(2)

    crowd.play(story)
    claim = crowd.view.path[0].updates[0].claim
    assert claim.samples == 30 and claim.data == (DataRange(claim.data[0].start, 30),)
    fixed, total, start = FixedPoint(8.0, 4), np.zeros(40, dtype=np.int64), claim.data[0].start
    for steps in (4, 4, 4, 3):
        trainer = crowd._trainer()
        for _ in range(steps):
            trainer.step(sample_indices(crowd.recipe.seed, start, 2, 4096), 0)
            start += 2
        total += fixed.encode(-trainer.params()).view(np.int32)
    mean = torch.from_numpy(total.astype(np.float64) * fixed.unit / 4)
    assert float((_values(crowd, claim).to(torch.float64) - mean).abs().max()) < 1e-6
    assert float(mean.abs().max()) > 0.1


def _values(crowd: Crowd, claim: Claim) -> torch.Tensor:
    disk = SubDisk(crowd.machines["hub-a"].disk, f"runs/{RUN}")
    layout = crowd._trainer().layout
    opened = open_update(BlobStore(disk, lambda point: None).get(claim.blob), layout, (0, 1), PLAIN)
    assert opened is not None
    out = torch.empty(40)
    for index, part in enumerate(layout.fragments):
        opened[index].decode(0, part.numel, 1.0, out[part.start : part.stop])
    return out


def test_members_that_vanish_at_any_time_cost_a_round_nothing() -> None:
    crowd = Crowd({"a": 7, "b": 5})

    async def story() -> None:
        crowd.start()
        await crowd.rounds(2)
        crowd.kill("a1")
        await asyncio.sleep(0.7)
        crowd.kill("a5")
        await crowd.rounds(4)
        crowd.start("a1", "a5")
        await crowd.until(lambda: crowd.member("a5").rounds >= 2, 200, "its return")

    crowd.play(story)
    assert _distance(crowd, "a") < 0.3


def test_too_few_members_wait_and_then_go_on() -> None:
    crowd = Crowd({"a": 4, "b": 4})

    async def story() -> None:
        crowd.start(*(name for name in crowd.machines if name != "a3"))
        await crowd.until(
            lambda: "waiting for members: 3 of 4" in crowd.group("a").machine.doing, 60, "3 of 4"
        )
        assert not any(
            update.claim.node == crowd.group("a").identity.node
            for step in crowd.view.path
            for update in step.updates
        )
        crowd.start("a3")
        await crowd.until(lambda: crowd.member("a3").rounds >= 2, 200, "rounds of four")

    crowd.play(story)


def test_a_hub_that_was_killed_goes_on_with_its_members() -> None:
    crowd = Crowd({"a": 5, "b": 5})
    seen: dict[str, int] = {}

    async def story() -> None:
        crowd.start()
        await crowd.rounds(2)
        crowd.kill("hub-a")
        await asyncio.sleep(3)
        seen["rounds"] = crowd.member("a0").rounds
        crowd.start("hub-a")
        await crowd.until(lambda: crowd.member("a0").rounds >= seen["rounds"] + 2, 300, "more sums")

    crowd.play(story)


def test_a_member_never_masks_the_same_samples_twice_even_after_a_restart() -> None:
    crowd = Crowd({"a": 5, "b": 5})

    async def story() -> None:
        crowd.start()
        await crowd.until(lambda: crowd.member("a0").rounds >= 2, 120, "sums")
        spent = crowd.member("a0")._spent
        assert spent > 0
        crowd.kill("a0")
        crowd.start("a0")
        await crowd.until(lambda: crowd.member("a0").learner is not None, 60, "its return")
        assert crowd.member("a0")._spent >= spent

    crowd.play(story)


def test_members_refuse_rounds_that_would_give_them_away() -> None:
    crowd = Crowd({"a": 5, "b": 5})

    async def story() -> None:
        crowd.start()
        await crowd.until(lambda: crowd.member("a0").rounds >= 2, 120, "sums")

    crowd.play(story)
    member, nodes = crowd.member("a0"), [crowd.machines[f"a{number}"].identity for number in range(5)]
    roster = tuple(one.public for one in sorted(nodes, key=lambda one: one.node))
    terms = Terms(
        group=RUN, hub=member.invitation.coordinator, round=9, roster=roster, threshold=4, numel=41, limit=8.0
    )
    fresh = DataRange(member._spent, 6)
    task = Task(base=BlobId("0" * 64), base_bytes=160, round=9, first_step=0, data=fresh, steps=3, batch=2)
    alone = {"allow": [nodes[0].node], "min_nodes": 1}
    listed = masked_recipe(membership={**crowd.recipe.membership.model_dump(), **alone})
    assert not member._refuses(Call(terms, task), crowd.recipe)
    assert "list" in member._refuses(Call(terms, task), listed)
    used = replace(task, data=DataRange(member._spent - 1, 6))
    for changed, words in [
        (Call(terms, used), "already"),
        (Call(terms, replace(task, steps=0, data=DataRange(10_000, 0))), "none of this run's"),
        (Call(terms, replace(task, base_bytes=164)), "none of this run's"),
        (Call(replace(terms, threshold=3), task), "protect less"),
        (Call(replace(terms, roster=roster[:3], threshold=3), task), "protect less"),
        (Call(replace(terms, threshold=2), task), "more than half"),
        (Call(replace(terms, limit=1e6), task), "others than the recipe's"),
        (Call(replace(terms, numel=40), task), "others than the recipe's"),
        (Call(replace(terms, group="0" * 32), task), "another group"),
    ]:
        assert words in member._refuses(changed, crowd.recipe)


def _after(aggregate: str, liars: frozenset[str]) -> float:
    strategy = {
        **masked_recipe().strategy.model_dump(exclude={"region", "digest"}),
        "aggregate": {"kind": aggregate},
    }
    membership = {"min_nodes": 5, "lease_s": 4.0, "heartbeat_s": 1.0, "reconnect_s": 2.0}
    recipe = masked_recipe(strategy=strategy, membership=membership)
    crowd = Crowd(dict.fromkeys("abcde", 4), recipe=recipe, liars=liars)

    async def story() -> None:
        crowd.start()
        await crowd.rounds(5)

    crowd.play(story)
    return _distance(crowd, "a")


def test_a_robust_rule_over_the_groups_means_bears_a_liar_in_one_of_them() -> None:
    """Inside its group nobody can see what it sends; outside, its group is one among five."""
    liars = frozenset({"c2"})
    assert _after("mean", liars) > 1.0
    assert _after("robust", liars) < 0.3


def test_who_spoils_a_round_is_found_by_its_own_words_and_let_in_no_more() -> None:
    """Its victim cannot open the envelope and is missing; the victim's key then shows whose it was."""
    crowd = Crowd({"a": 7, "b": 5}, spoilers=frozenset({"a3"}))
    spoiler = crowd.machines["a3"]

    async def story() -> None:
        crowd.start()
        await crowd.until(lambda: bool(crowd.group("a").failure), 200, "a spoilt round")
        assert spoiler.identity.node[:12] in crowd.group("a").failure
        assert spoiler.task is not None
        task = spoiler.task
        spoiler.task = None
        await crowd.until(task.done, 60, "its end")
        assert "SH-JOIN-13" in str(task.exception())
        await crowd.until(lambda: crowd.member("a0").rounds >= 2, 300, "sums without it")

    crowd.play(story)
