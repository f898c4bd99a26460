"""Attacks on the protocol, as real nodes would make them: the honest ones go on, agree, and none of them is harmed."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.apps.hostile import PROTOCOL, SYBILS, Sybil, hostile
from shoal.audit.docket import Docket
from shoal.base.errors import ShoalError
from shoal.runlog.entries import Ban, Joined

from .harness import Fleet, toy_recipe

OWN = sorted(name for name in PROTOCOL if not name.startswith("liar-"))


def _play(name: str, rounds: int = 5, **sections: Any) -> Fleet:
    fleet = Fleet(nodes=4, recipe=toy_recipe(storage={"snapshot_every": 1}, **sections))
    fleet.lies("n1", hostile(name))

    async def story() -> None:
        fleet.start()
        goal = fleet.referee.honest_rounds + rounds
        await fleet.until(lambda: fleet.referee.honest_rounds >= goal, 240, f"{rounds} rounds")

    fleet.play(story)
    return fleet


def _agree(fleet: Fleet) -> bool:
    states: dict[int, set[str]] = {}
    for name, (at, state) in fleet.states().items():
        if name != "n1":
            states.setdefault(at, set()).add(state)
    return bool(states) and all(len(equal) == 1 for equal in states.values())


@pytest.mark.parametrize("name", OWN)
def test_the_others_go_on_and_agree(name: str) -> None:
    assert _agree(_play(name))


@pytest.mark.parametrize("name", ["sign-flip", "stale-replay", "copy", "noise", "poisoned-feedback"])
def test_lies_about_updates_do_not_stop_a_run(name: str) -> None:
    assert _agree(_play(name))


def test_of_two_claims_of_one_sequence_one_counts() -> None:
    fleet = _play("equivocation")
    mine = [
        update.claim.sequence
        for step in fleet.view.path
        for update in step.updates
        if update.claim.node == fleet.id_of("n1")
    ]
    assert mine and len(mine) == len(set(mine))


def test_a_forged_base_and_a_replayed_claim_never_count() -> None:
    assert all(
        "n1" not in fleet.contributors(step.position)
        for fleet in (_play("forged-base"),)
        for step in fleet.view.path
    )
    fleet = _play("replayed-claim")
    blobs = [update.claim.blob for step in fleet.view.path for update in step.updates]
    assert len(blobs) == len(set(blobs))


@pytest.mark.parametrize(
    "asked", [{"max_nodes": 8}, {"work_bits": 4}, {"allow": True}], ids=["room", "work", "list"]
)
def test_sybils_meet_a_door(asked: dict[str, Any]) -> None:
    base = {"min_nodes": 2, "lease_s": 4.0, "heartbeat_s": 1.0, "reconnect_s": 2.0}
    plain = Fleet(nodes=4)
    if "allow" in asked:
        asked = {"allow": [machine.identity.node for machine in plain.nodes]}
    fleet = _play("sybil", rounds=8, membership={**base, **asked})
    joined = {body.node for body in fleet.bodies(Joined) if isinstance(body, Joined)}
    liar = fleet.machines["n1"].node
    assert isinstance(liar, Sybil)
    if "work_bits" in asked:
        assert len(joined) > 4  # They paid for it, each.
    else:
        assert (
            len(joined) <= 8 < SYBILS and set(liar.refused) <= {"SH-JOIN-11", "SH-JOIN-14"} and liar.refused
        )


def test_who_does_not_show_its_state_is_convicted_of_that() -> None:
    fleet = Fleet(nodes=5, recipe=toy_recipe(audit={"rate": 1.0}))
    fleet.lies("n1", hostile("withheld-state"))

    async def story() -> None:
        fleet.start()
        await fleet.until(lambda: bool(fleet.bodies(Ban)), 2000, "a ban")

    fleet.play(story)
    docket = Docket(fleet.recipe.audit)
    docket.follow(fleet.view)
    mine = [case.outcome for case in docket.cases.values() if case.key[0] == fleet.id_of("n1")]
    assert "withheld" in mine and "forged" not in mine


def test_an_unknown_adversary() -> None:
    with pytest.raises(ShoalError, match="SH-ATTACK-01"):
        hostile("kindness")
