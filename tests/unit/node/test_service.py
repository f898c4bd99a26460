"""The node's service with a coordinator's, in the simulated world."""

import itertools
from typing import Any

import msgspec

from shoal.node.service import NodeService
from shoal.runlog.entries import Claim, Plan
from shoal.runlog.view import ASSIGNMENTS_KEPT
from shoal.wire.messages import ClaimAck, Heartbeat, Offer
from shoal.wire.signed import parse

from .small_world import SmallWorld, world_recipe


def test_heartbeats_do_not_wait_for_a_long_step() -> None:
    """Ten seconds a step, a lease of four: it is in the plan, stays in it, and its update is sealed."""
    world = SmallWorld(world_recipe(steps=2))
    world.join("slow", step_seconds=10.0)

    async def story() -> None:
        took = await world.sealed(1, within_s=40.0)
        assert took > 20.0, "two steps of ten seconds"

    world.play(story)
    times = [when for when, _ in world.said("slow", Heartbeat)]
    assert max(two - one for one, two in itertools.pairwise(times)) < 2.5, "a step takes ten"
    assert len(world.bodies(Plan)) == 2, "the round that was sealed, and the next: it was never given up"
    doing = {beat.doing for _, beat in world.said("slow", Heartbeat)}
    assert "training round 0" in doing


def test_a_node_that_is_slower_than_the_deadline_is_heard_however_often_the_round_is_planned_again() -> None:
    deadline_s = 4.0
    world = SmallWorld(world_recipe(steps=2, deadline_s=deadline_s))
    world.join("slow", step_seconds=deadline_s * ASSIGNMENTS_KEPT)

    async def story() -> None:
        await world.sealed(1, within_s=3 * deadline_s * ASSIGNMENTS_KEPT)

    world.play(story)
    plans = [body for body in world.bodies(Plan) if isinstance(body, Plan) and body.round == 0]
    assert len(plans) > ASSIGNMENTS_KEPT
    assert [ack.kept for _, ack in world.said("coordinator", ClaimAck)] == [True]


def test_one_whose_machine_is_in_use_says_so_and_is_not_waited_for() -> None:
    world = SmallWorld(world_recipe(min_nodes=2))
    busy = ""
    world.join("idle", step_seconds=0.1)
    world.join("used", step_seconds=0.1, may_train=lambda: busy)

    async def story() -> None:
        nonlocal busy
        await world.sealed(2, within_s=30.0)
        busy = "somebody is at the keyboard"
        await world.until(lambda: world.said("used", Heartbeat)[-1][1].paused, 5.0)
        done = len(world.view.path)
        took = await world.sealed(done + 5, within_s=30.0)
        assert took < 10.0, "the deadline is a minute"
        names = {update.claim.node for update in world.view.path[-1].updates}
        assert names == {world.nodes["idle"].identity.node}
        assert "paused: somebody" in world.said("used", Heartbeat)[-1][1].doing
        assert world.nodes["used"].machine.at > 0, "it folds on"
        busy = ""
        used = world.nodes["used"].identity.node
        await world.until(lambda: used in {u.claim.node for u in world.view.path[-1].updates}, 20.0)

    world.play(story)


class OnceWrong(NodeService):
    """Its first claim says something that cannot be; all others are as they should be."""

    _wrong = True

    def _claim(self, *about: Any) -> Claim:
        claim = super()._claim(*about)
        wrong, self._wrong = self._wrong, False
        return msgspec.structs.replace(claim, loss=float("nan")) if wrong else claim


def _sequences(world: SmallWorld, name: str) -> list[int]:
    offers = (parse(offer.claim.payload, Claim) for _, offer in world.said(name, Offer))
    return sorted({claim.sequence for claim in offers if claim is not None})


def test_after_a_refused_claim_the_round_is_trained_anew_and_counts_no_sample_twice() -> None:
    for overlap in (0, 3):
        world = SmallWorld(world_recipe(steps=3, overlap=overlap))
        world.join("clumsy", service=OnceWrong, step_seconds=0.5)

        async def story(world: SmallWorld = world) -> None:
            await world.sealed(3, within_s=40.0)

        world.play(story)
        refused = [ack for _, ack in world.said("coordinator", ClaimAck) if not ack.kept]
        assert len(refused) == 1 and not refused[0].retry and "no number" in refused[0].reason
        first = world.view.path[0].updates[0].claim
        assert first.sequence == 1 and _sequences(world, "clumsy")[:2] == [0, 1]
        assert (first.steps, first.samples) == (3, 6), "its work, once, and no spare steps"
        assert len(world.bodies(Plan)) == 4


def test_in_a_window_of_time_each_does_what_it_can_and_one_step_at_least() -> None:
    world = SmallWorld(world_recipe(steps=50, seconds=2.0, min_nodes=3))
    for name, step_seconds in (("quick", 0.05), ("slow", 0.4), ("snail", 5.0)):
        world.join(name, step_seconds=step_seconds)

    async def story() -> None:
        await world.sealed(2, within_s=40.0)

    world.play(story)
    names = {world.nodes[name].identity.node: name for name in world.nodes}
    steps = {names[update.claim.node]: update.claim.steps for update in world.view.path[1].updates}
    assert 30 <= steps["quick"] <= 50 and 4 <= steps["slow"] <= 6 and steps["snail"] == 1
    assert world.view.totals.steps > 20, "the schedule goes by the steps that were taken"


def test_overlap_trains_so_many_steps_more_and_counts_them_in_the_next_update() -> None:
    """Nobody answers for a while: two further steps, and then it waits."""
    world = SmallWorld(world_recipe(steps=4, overlap=2, min_nodes=2))
    world.join("quick", step_seconds=0.1)
    world.join("slow", step_seconds=1.0)

    async def story() -> None:
        await world.sealed(2, within_s=40.0)

    world.play(story)
    quick = world.nodes["quick"].identity.node
    claim = next(update.claim for update in world.view.path[1].updates if update.claim.node == quick)
    first, second = claim.data
    assert (first.count, second.count) == (2 * 2, 2 * 2), (
        "two spare steps of the round before, two of its own"
    )
    assert claim.steps == 4 and [taken.step for taken in claim.merges] == [2]


def test_one_that_leaves_before_it_has_begun_has_left() -> None:
    world = SmallWorld(world_recipe())

    async def story() -> None:
        node = world.join("brief")
        await node.leave("never mind")
        await world.until(lambda: node._finished is not None and not node._running, within_s=5.0)

    world.play(story)
    assert world.view.members == {}
