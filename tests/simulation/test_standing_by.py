"""A coordinator that stands by has what it would need to lead, and no more, however long it stands by."""

from __future__ import annotations

from shoal.base.disk import SubDisk
from shoal.base.host import Peer
from shoal.coordinator.copies import Copies, lasting_blobs
from shoal.replica.blobs import BlobStore
from shoal.wire.identity import Identity
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.network import Link

from .harness import COORDINATOR, RUN, Fleet, toy_recipe


def test_what_a_stand_by_keeps_does_not_grow_with_the_rounds() -> None:
    storage = {"snapshot_every": 2, "keep_bytes": 0}
    fleet = Fleet(nodes=2, recipe=toy_recipe(storage=storage))
    disk, identity = SimDisk(), Identity(b"stand-by".ljust(32, b"."))
    room = BlobStore(SubDisk(disk, f"runs/{RUN}"), lambda point: None)
    evidence = room.put(b"from when it led")
    kept: list[int] = []

    async def story() -> None:
        fleet.start()
        await fleet.rounds(1)
        coordinator, leader = fleet.machines[COORDINATOR], fleet.coordinator
        host = SimHost(fleet.loop, fleet.network, "stand-by", 1, disk, node=identity.node, link=Link())
        ahead = Peer(node=coordinator.identity.node, address=leader._blob_address)
        copies = Copies(host, leader.store, lambda _: room, lambda: [ahead], lambda *_: None)
        for _ in range(30):
            await fleet.rounds(2)
            for _ in range(4):  # One blob at a time.
                await copies.follow()
            kept.append(room.used_bytes())
        (view,) = copies.views()
        assert all(room.has(blob) for blob, _, _ in lasting_blobs(view)), "all that it would need"
        assert room.has(evidence), "and what else it has"

    fleet.play(story)
    assert 0 < max(kept[15:]) <= max(kept[5:15]), kept
