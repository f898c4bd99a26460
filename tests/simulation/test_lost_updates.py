"""Updates whose author and holders fall silent just after the seal: found if anybody has them, else undone soon."""

from __future__ import annotations

import asyncio

import pytest

from shoal.base.disk import SubDisk
from shoal.base.ids import BlobId
from shoal.replica.blobs import BlobStore
from shoal.runlog.entries import Rewind
from shoal.runlog.view import Step

from .harness import COORDINATOR, DEADLINE_S, RUN, Fleet, toy_recipe

NODES = 10
GONE = 6


def fleet_of(receipts: int, seed: int, size: int) -> Fleet:
    storage = {"snapshot_every": 2, "receipts": receipts, "archive": False}
    return Fleet(seed=seed, nodes=NODES, size=size, recipe=toy_recipe(storage=storage))


def holders(fleet: Fleet, blob: BlobId) -> list[str]:
    """On whose disk it lies."""
    disks = {name: SubDisk(machine.disk, f"runs/{RUN}") for name, machine in fleet.machines.items()}
    return [name for name, disk in disks.items() if BlobStore(disk, lambda point: None).has(blob)]


async def sealed_with_few_holders(fleet: Fleet, most: int) -> tuple[Step, list[str]]:
    """A seal just when it is made, and who has an update of it that no more than so many nodes have."""
    fleet.start()
    await fleet.rounds(3)
    while True:
        count = len(fleet.referee.rounds_sealed)
        while len(fleet.referee.rounds_sealed) == count:  # noqa: ASYNC110 - at once, before anybody fetches anything.
            await asyncio.sleep(0.001)
        step = fleet.view.path[-1]
        for update in step.updates:
            found = holders(fleet, update.claim.blob)
            if COORDINATOR not in found and len(found) <= most:
                return step, found


def silence(fleet: Fleet, names: list[str], how: str) -> None:
    """These answer nobody any more: their processes hang, or their lines are cut."""
    for name in names:
        if how == "hang":
            fleet.stop(name)
        for other in fleet.machines if how == "cut" else ():
            fleet.network.faults.cut |= {(name, other), (other, name)}


@pytest.mark.parametrize("size", [40, 50_000], ids=["tiny", "200 kB"])
@pytest.mark.parametrize(("how", "receipts"), [("hang", 1), ("hang", 2), ("cut", 1)])
def test_an_update_whose_author_and_holders_fall_silent_costs_about_one_deadline(
    how: str, receipts: int, size: int
) -> None:
    fleet = fleet_of(receipts, 1, size)

    async def story() -> None:
        step, found = await sealed_with_few_holders(fleet, GONE)
        others = [machine.name for machine in fleet.nodes if machine.name not in found]
        silence(fleet, [*found, *others][:GONE], how)
        assert await fleet.rounds(1, 900.0) <= DEADLINE_S + 4.0
        (rewind,) = fleet.bodies(Rewind)
        assert isinstance(rewind, Rewind) and f"of the seal at {step.position}" in rewind.reason
        usual_s = await fleet.rounds(3)
        assert usual_s < DEADLINE_S, "and from there on it costs nothing"

    fleet.play(story)
    states = set(fleet.states().values())
    assert len(states) == len({at for at, _ in states}), "wherever nodes stand, they stand alike"


@pytest.mark.parametrize("how", ["hang", "cut"])
def test_an_update_that_one_live_node_holds_is_found_among_the_silent(how: str) -> None:
    fleet = fleet_of(2, 1, 40)

    async def story() -> None:
        step, found = await sealed_with_few_holders(fleet, GONE)
        alive, everybody = found.pop(), {machine.name for machine in fleet.nodes}
        held = [set(holders(fleet, update.claim.blob)) for update in step.updates]
        gone: list[str] = []
        for name in (*found, *sorted(everybody - {*found, alive})):
            if len(gone) < GONE and all(have - {*gone, name} for have in held):
                gone.append(name)
        assert set(found) <= set(gone) and len(gone) >= GONE // 2
        silence(fleet, gone, how)
        await fleet.rounds(3, 2 * DEADLINE_S)
        assert fleet.view.stands(step.position) and not fleet.bodies(Rewind)

    fleet.play(story)
