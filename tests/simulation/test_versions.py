"""Peers of two versions in one run, and a coordinator that is upgraded while it is on."""

from __future__ import annotations

import pytest

from shoal.base.errors import ShoalError
from shoal.wire.versions import PROTOCOL, Speaks

from .harness import COORDINATOR, Fleet

OLD = Speaks(PROTOCOL - 1, PROTOCOL - 1)
NEW = Speaks(PROTOCOL - 1, PROTOCOL)


def _versions(fleet: Fleet) -> dict[str, set[int]]:
    """By node, the versions of the frames between it and the coordinator from now on, greetings left out."""
    seen: dict[str, set[int]] = {}
    look = fleet.network.tap

    def tap(sender: str, receiver: str, frame: bytes) -> None:
        look(sender, receiver, frame)
        node = receiver if sender == COORDINATOR else sender
        if b"challenge" not in frame[:40]:
            seen.setdefault(node, set()).add(frame[1])

    fleet.network.tap = tap
    return seen


def test_old_and_new_nodes_train_together() -> None:
    fleet = Fleet(nodes=2)
    fleet.machines["n0"].speaks = OLD
    seen = _versions(fleet)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(3)

    fleet.play(story)
    assert seen == {"n0": {PROTOCOL - 1}, "n1": {PROTOCOL}}
    assert {name for step in fleet.view.path for name in fleet.contributors(step.position)} == {"n0", "n1"}


def test_the_coordinator_is_upgraded_and_then_the_nodes_and_the_run_goes_on() -> None:
    fleet = Fleet(nodes=2)
    for machine in fleet.machines.values():
        machine.speaks = OLD
    before = _versions(fleet)

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2)
        assert before == {"n0": {PROTOCOL - 1}, "n1": {PROTOCOL - 1}}
        for name in (COORDINATOR, "n0", "n1"):
            fleet.kill(name)
            fleet.machines[name].speaks = NEW
            fleet.start(name)
            await fleet.rounds(2)
        before.clear()
        await fleet.rounds(2)
        assert before == {"n0": {PROTOCOL}, "n1": {PROTOCOL}}

    fleet.play(story)
    rounds = sorted(fleet.referee.rounds_sealed)
    assert rounds == list(range(len(rounds)))


@pytest.mark.parametrize("old", [COORDINATOR, "n0"])
def test_nothing_in_common_is_refused_with_what_to_do(old: str) -> None:
    fleet = Fleet(nodes=1)
    only_new = Speaks(PROTOCOL, PROTOCOL)
    for machine in fleet.machines.values():
        machine.speaks = OLD if machine.name == old else only_new

    async def story() -> None:
        fleet.start()
        with pytest.raises(ShoalError) as refused:
            await fleet.rounds(1)
        assert refused.value.code == "SH-JOIN-06"
        older = "this one" if old == "n0" else "the other side"
        assert f"upgrade {older}" in refused.value.next_step

    fleet.play(story)
