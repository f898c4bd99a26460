"""Private runs as services in the simulated world: budgets end them, and crashes give nothing back."""

import asyncio
from typing import Any

import msgspec
from runlog.small_log import RUN, small_recipe

from shoal.node.private import LEDGER, Spent
from shoal.node.service import NodeService
from shoal.runlog.entries import Claim, Seal
from shoal.strategy.recipe import Recipe
from shoal.wire.messages import Heartbeat
from shoal.wire.signed import parse
from shoal.worlds.simulated.disk import SimDisk

from .small_world import SmallWorld


def private_recipe(epsilon: float, noise: float = 3.0, **more: Any) -> Recipe:
    return small_recipe(
        strategy={
            "preset": "local-sgd",
            "schedule": {"steps": 2},
            "codec": {"kind": "none"},
            "seal": {"kind": "all-or-deadline", "deadline_s": 60.0},
        },
        membership={"min_nodes": 2, "lease_s": 4.0, "heartbeat_s": 1.0, "reconnect_s": 2.0},
        privacy={"unit": "update", "noise": noise, "epsilon": epsilon, "clip": 1.0},
        **more,
    )


def ledger_on(disk: SimDisk) -> int:
    return msgspec.msgpack.decode(disk.read(f"runs/{RUN}/{LEDGER}"), type=Spent).releases


def test_a_run_ends_with_a_sentence_when_nobody_has_any_budget_left() -> None:
    world = SmallWorld(private_recipe(epsilon=3.0))
    nodes = [world.join("a", step_seconds=1.0), world.join("b", step_seconds=1.0)]

    async def story() -> None:
        await world.until(lambda: world.view.stopped is not None, 600)

    world.play(story)
    machine = world.coordinator.runs[RUN].machine
    guarantee = machine.privacy.guarantee
    assert guarantee is not None and guarantee.releases is not None and guarantee.releases < 100
    assert len(world.view.path) == guarantee.releases, "everything that fits is used"
    assert world.view.stopped == (
        "the privacy budget is spent: no node has another round within epsilon 3 (delta 1e-05)"
    )
    for node in nodes:
        member = world.view.members[node.identity.node]
        assert node.privately is not None and node.privately.spent == guarantee.releases
        assert 2.5 < (machine.privacy.epsilon(member) or 0) <= 3.0
    claims = [parse(one.claim.payload, Claim) for seal in world.bodies(Seal) for one in seal.accepted]
    assert claims and all(claim is not None and claim.loss == 0 for claim in claims)
    assert max(beat.spent for _, beat in world.said("a", Heartbeat)) >= guarantee.releases - 1
    assert all(beat.loss == 0 for _, beat in world.said("a", Heartbeat))


def test_a_node_whose_own_ledger_says_so_stops_while_the_others_go_on() -> None:
    world = SmallWorld(private_recipe(epsilon=3.0))

    class Spendthrift(NodeService):
        """It made updates that never came to anything."""

        async def _make_learner(self, *of: Any) -> Any:
            learner = await super()._make_learner(*of)
            learner.privately.spent = learner.privately.guarantee.releases - 1
            return learner

    spent = world.join("a", service=Spendthrift, step_seconds=1.0)
    other = world.join("b", step_seconds=1.0)

    async def story() -> None:
        await world.sealed(3, 600)

    world.play(story)
    assert world.view.members[spent.identity.node].updates == 1
    assert world.view.members[other.identity.node].updates == 3
    note = world.coordinator.runs[RUN].machine.note(spent.identity.node)
    assert note.startswith("paused: its privacy budget is spent: epsilon")


def test_whenever_a_node_dies_its_ledger_counts_every_update_that_others_may_have_seen() -> None:
    points = ("node.after-privacy", "node.before-outbox", "node.after-outbox", "node.before-claim")
    for point in points:
        world = SmallWorld(private_recipe(epsilon=30.0, storage={"snapshot_every": 2}))
        node = world.join("a")
        world.join("b")
        host: Any = node.host
        seen: list[int] = []

        def dies(reached: str, point: str = point, seen: list[int] = seen) -> bool:
            seen.append(reached == point)
            return reached == point and sum(seen) == 3

        host.on_point = dies

        async def story(world: SmallWorld = world, host: Any = host) -> None:
            await world.until(lambda: not host.alive, 600)
            await asyncio.sleep(5)

        world.play(story)
        assert ledger_on(host.disk) >= 3, point
        assert world.view.members[node.identity.node].updates <= ledger_on(host.disk), point
