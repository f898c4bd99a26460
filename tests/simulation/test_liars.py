"""One member lies, each time in one way; the others go on, agree, and nobody honest fails."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.replica.blobs import chunk_list
from shoal.runlog.entries import Claim
from shoal.wire.messages import NeedEntries
from shoal.worlds.simulated.liars import LIARS, Claimant, Liar
from shoal.worlds.simulated.network import Link

from .harness import COORDINATOR, Fleet, toy_recipe


def _goes_on(fleet: Fleet, liar: str, rounds: int = 4, within_s: float = 120.0) -> None:
    honest = [machine.name for machine in fleet.nodes if machine.name != liar]

    def keep_up() -> bool:
        recent = fleet.view.path[-2].position
        return all(fleet.machines[name].node.machine.at >= recent for name in honest)

    async def story() -> None:
        fleet.start()
        goal = fleet.referee.honest_rounds + rounds
        await fleet.until(lambda: fleet.referee.honest_rounds >= goal, within_s, f"{rounds} rounds")
        await fleet.until(keep_up, within_s, "the honest nodes keeping up")

    fleet.play(story)
    states: dict[int, set[str]] = {}
    for name, (at, state) in fleet.states().items():
        if name in honest:
            states.setdefault(at, set()).add(state)
    assert states and all(len(equal) == 1 for equal in states.values())


@pytest.mark.parametrize("inbound", [True, False], ids=["open", "behind NAT"])
@pytest.mark.parametrize("kind", sorted(LIARS))
def test_one_liar_among_four(kind: str, inbound: bool) -> None:
    fleet = Fleet(nodes=4, recipe=toy_recipe(storage={"snapshot_every": 1}))
    fleet.machines["n1"].inbound = inbound
    fleet.lies("n1", LIARS[kind])
    _goes_on(fleet, "n1")


@pytest.mark.parametrize("kind", sorted(LIARS))
def test_a_joiner_is_not_misled_by_a_liar_who_is_quick(kind: str) -> None:
    fleet = Fleet(seed=2, nodes=5, recipe=toy_recipe(storage={"snapshot_every": 1, "keep_bytes": 0}))
    fleet.lies("n2", LIARS[kind])
    fleet.machines["n2"].link = Link(latency_s=0.001, jitter_s=0.0)  # Its word comes first.

    async def story() -> None:
        fleet.start(COORDINATOR, "n0", "n1", "n2", "n3")
        await fleet.rounds(6, 120)
        fleet.start("n4")
        await fleet.until(lambda: "n4" in fleet.contributors(fleet.view.at), 90, "joining")

    fleet.play(story)
    poison = {chunk_list(b"rubbish" * count).blob for count in (1, 2, 3)}
    assert not [saved.at for saved in fleet.view.snapshots if saved.blob in poison], "saved in the log"


@pytest.mark.parametrize("size_bytes", [1, 10**6, 10**12], ids=["small", "large", "huge"])
@pytest.mark.parametrize("inbound", [True, False], ids=["peers hold it", "the coordinator holds it"])
def test_a_claim_that_lies_about_its_size_cannot_halt_the_run(size_bytes: int, inbound: bool) -> None:
    class Boaster(Claimant):
        def untrue(self, claim: Claim) -> dict[str, Any]:
            return {"size_bytes": size_bytes}

    fleet = Fleet(nodes=3)
    for machine in fleet.nodes:
        machine.inbound = inbound
    fleet.lies("n2", Boaster)
    _goes_on(fleet, "n2")


@pytest.mark.parametrize("start", [-1, -(2**40), 2**63, 2**64 - 1])
def test_a_member_that_asks_for_impossible_entries_does_no_harm(start: int) -> None:
    fleet = Fleet(nodes=2)
    fleet.lies("n0", Liar)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(1)
        await fleet.machines["n0"].node._link.send(NeedEntries(start=start))
        await fleet.rounds(3)

    fleet.play(story)
