"""The whole cluster loses its power, and what was not synced with it: the run goes on from its last sealed round."""

from __future__ import annotations

import pytest

from .harness import Fleet, toy_recipe


@pytest.mark.parametrize("seed", range(1, 9))
def test_everybody_off_and_on(seed: int) -> None:
    fleet = Fleet(seed=seed, nodes=3, recipe=toy_recipe(storage={"snapshot_every": 1 + seed % 3}))

    async def story() -> None:
        fleet.start()
        await fleet.rounds(3 + seed % 4)
        # Off at some moment of a round, not at its seal.
        await fleet.until(lambda: fleet.loop.rng.random() < 0.1, 60.0)
        before, states = list(fleet.referee.entries), _states(fleet)
        for name in fleet.machines:
            fleet.kill(name)
        fleet.start()  # The referee compares the coordinator's log with what it saw.
        last = fleet.view.at
        await fleet.until(
            lambda: all(at >= last for at, _ in fleet.states().values()), 60.0, "the last state"
        )
        assert fleet.referee.entries[: len(before)] == before
        for name, (at, state) in fleet.states().items():
            assert states.get(at, state) == state, f"{name} came back with another state at {at}"
        await fleet.rounds(3)
        assert len({fleet.states()[machine.name] for machine in fleet.nodes}) <= 2

    fleet.play(story)
    rounds = sorted(fleet.referee.rounds_sealed)
    assert rounds == list(range(len(rounds)))


def _states(fleet: Fleet) -> dict[int, str]:
    """What was attested so far, by position."""
    return {position: state for (position, _), state in fleet.referee.states.items()}


def test_a_state_that_was_attested_is_reached_again_bit_for_bit() -> None:
    """Nodes whose disks lost everything that was not synced fold the last seal to the very same hash."""
    fleet = Fleet(seed=11, nodes=2, recipe=toy_recipe(storage={"snapshot_every": 4}))
    again: list[str] = []

    async def story() -> None:
        fleet.start()
        await fleet.rounds(5)
        at = fleet.view.at
        await fleet.until(lambda: at in _states(fleet), 30.0, "an attestation")
        attested = _states(fleet)[at]
        for name in fleet.machines:
            fleet.kill(name)
        fleet.start(
            "coordinator", "n0"
        )  # The other one stays off: what n0 has is its own and the coordinator's.
        await fleet.until(
            lambda: "n0" in fleet.states() and fleet.states()["n0"][0] >= at, 60.0, "n0's state"
        )
        found = fleet.states()["n0"]
        assert found[0] != at or found[1] == attested
        again.append(attested)

    fleet.play(story)
    assert again
