"""Keys as services see them: a hybrid run in the simulated world, and a node that comes back with another key."""

import asyncio
from typing import Any

import pytest
from runlog.small_log import RUN, small_recipe

from shoal.node.options import NodeOptions
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.runlog.entries import Rotated, Seal
from shoal.runlog.keys import rotate
from shoal.runlog.view import verify_log
from shoal.strategy.recipe import Recipe
from shoal.wire.hybrid import HYBRID_SIGNATURE_BYTES
from shoal.wire.identity import Identity
from shoal.worlds.simulated.founding import TOKEN, identity_of
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.network import Link

from .small_world import SEED, SmallWorld


def keyed(signatures: str) -> Recipe:
    return small_recipe(
        identity={"signatures": signatures},
        membership={"min_nodes": 2, "lease_s": 4.0, "heartbeat_s": 1.0, "reconnect_s": 2.0},
    )


def come_back(world: SmallWorld, old: NodeService, identity: Identity, name: str) -> NodeService:
    """The same machine, started again from its own disk with this identity."""
    before: Any = old.host
    host = SimHost(world.loop, world.network, name, 2, before.disk, node=identity.node, link=Link())
    invitation = Invitation(
        coordinator=identity_of(SEED, "coordinator").node,
        addresses=("coordinator",),
        run=RUN,
        token=TOKEN,
        name=name,
    )
    make: Any = old._make_trainer
    node = NodeService(host, identity, invitation, make, NodeOptions(give_up_s=1e9, step_seconds=0.5))
    world.loop.spawn(host.owner, node.run(), name)
    return node


@pytest.mark.parametrize("signatures", ["ed25519", "hybrid"])
@pytest.mark.parametrize("revokes", [False, True])
def test_a_node_comes_back_with_another_key_in_the_middle_of_a_run(signatures: str, revokes: bool) -> None:
    world = SmallWorld(keyed(signatures))
    first = world.join("a", step_seconds=0.5)
    world.join("b", step_seconds=0.5)
    old = identity_of(SEED, "a")
    new, _ = rotate(old, b"another".ljust(32, b"."), revokes=revokes)

    async def story() -> None:
        await world.sealed(2, 600)
        host: Any = first.host
        host.die()
        await asyncio.sleep(1.0)
        come_back(world, first, new, "a")
        before = world.view.members[old.node].updates
        await world.until(lambda: world.view.members[old.node].updates >= before + 3, 600)

    world.play(story)
    assert [body.node for body in world.bodies(Rotated)] == [old.node]
    speaker = new.hybrid if signatures == "hybrid" else new
    assert world.view.public_of(old.node) == speaker.public and len(world.view.members) == 2
    entries = list(world.coordinator.store.read(RUN))
    assert verify_log(entries, RUN)[1] is None
    seals: list[Any] = world.bodies(Seal)
    signed = {len(one.claim.signature) for seal in seals for one in seal.accepted}
    assert signed == {HYBRID_SIGNATURE_BYTES if signatures == "hybrid" else 64}
