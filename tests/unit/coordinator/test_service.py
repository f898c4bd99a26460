"""The coordinator's service among nodes that lie, in the simulated world."""

from collections import Counter

import pytest
from node.small_world import SmallWorld, world_recipe
from runlog.small_log import RUN

from shoal.node import events as ev
from shoal.replica.state import State, decode_state, encode_state, initial_state, state_hash
from shoal.runlog.entries import Joined, Left, Rewind, Snapshot
from shoal.runlog.view import verify_log
from shoal.worlds.simulated.liars import LIARS, Liar
from shoal.worlds.simulated.toy import toy_layout


class Stale(Liar):
    """Attests the right state, and names another, real one of the same size as its snapshot."""

    async def _attest(self, word: ev.SendAttestation) -> None:
        assert self.state is not None
        other = self.blobs.put(encode_state(_moved(self.state)))
        await super()._attest(ev.SendAttestation(word.at, word.state, other, None))


def _moved(state: State) -> State:
    return initial_state(state.layout, state.params + 1, tuple(state.slots))


def _with(*liars: str, honest: int = 2) -> SmallWorld:
    world = SmallWorld(world_recipe(deadline_s=5.0, min_nodes=honest))
    for number in range(honest):
        world.join(f"honest {number}", step_seconds=0.1)
    kinds = {**LIARS, "stale": Stale}
    for name in liars:
        world.join(name, service=kinds[name], step_seconds=0.1)
    return world


def _play(world: SmallWorld, rounds: int, within_s: float = 120.0) -> None:
    async def story() -> None:
        await world.sealed(rounds, within_s)

    world.play(story)
    _, finding = verify_log(list(world.coordinator.store.read(RUN)))
    assert finding is None


@pytest.mark.parametrize("liar", ["stale", "poisoner"])
def test_a_state_that_is_not_what_it_is_named_for_is_never_saved(liar: str) -> None:
    world = _with(liar)
    _play(world, 9)
    snapshots = [body for body in world.bodies(Snapshot) if isinstance(body, Snapshot)]
    assert len(snapshots) >= 3, "one liar cannot keep the others' states from being saved"
    blobs, layout = world.coordinator.runs[RUN].blobs, toy_layout(40, 1)
    for saved in snapshots[-2:]:
        assert state_hash(decode_state(blobs.get(saved.blob), layout)) == saved.state
    assert not world.bodies(Rewind)


@pytest.mark.parametrize("liar", ["nagger", "babbler", "whiner", "withholder", "miser", "size", "braggart"])
def test_lies_do_not_stop_the_run(liar: str) -> None:
    world = _with(liar)
    _play(world, 5)
    assert not world.bodies(Rewind)


@pytest.mark.parametrize("liar", ["slammer", "flapper"])
def test_coming_and_going_does_not_fill_the_log(liar: str) -> None:
    world = _with(liar)
    _play(world, 8)
    entries = [*world.bodies(Joined), *world.bodies(Left)]
    most = max(Counter(body.node for body in entries if isinstance(body, Joined | Left)).values())
    assert most <= world.view.round + 1
