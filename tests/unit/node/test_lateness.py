"""Work that goes on while rounds are sealed without it, and states that are attested now and then."""

from typing import Any

import msgspec
import pytest
from runlog.small_log import NODES, accepted, small_recipe

from shoal.node.events import (
    Adopt,
    Fold,
    Load,
    SendAttestation,
    StopTraining,
    Ticked,
    Train,
    Trained,
    TrainingEnded,
)
from shoal.runlog.entries import Rewind, Stopped
from shoal.wire.messages import Offer

from .pupil import Pupil

A, B = NODES[:2]


def _plan(pupil: Pupil, *nodes: Any, staleness: int = 2) -> int:
    body = pupil.clerk.plan_body(*nodes)
    members = tuple(msgspec.structs.replace(member, staleness=staleness) for member in body.members)
    return pupil.clerk.append(msgspec.structs.replace(body, members=members))


def _late(staleness: int = 2, recipe: Any = None) -> Pupil:
    """A is at work in round 0 with time to spare, and B has sealed that round alone."""
    pupil = Pupil(A, B, recipe=recipe)
    _plan(pupil, A, B, staleness=staleness)
    pupil.settle_in()
    assert pupil.wanted(Train)
    return pupil


def _seal_without(pupil: Pupil) -> int:
    """B seals a round, and the next begins with B alone."""
    at = pupil.clerk.seal(B)
    _plan(pupil, B)
    pupil.catch_up()
    return at


def test_a_seal_does_not_stop_work_that_may_still_be_sealed() -> None:
    pupil = _late()
    at = _seal_without(pupil)
    assert not pupil.wanted(StopTraining) and pupil.wanted(Fold)[0].step.position == at
    pupil.has_state(at)
    assert pupil.wanted(Adopt) == [Adopt(at, working=True, settled=-1)] and not pupil.wanted(Train)
    made = pupil.outgoing(sequence=0, **_own_plan(pupil))
    pupil.step(Trained(made))
    pupil.publish(made)
    assert pupil.sent(Offer)[0].claim == made.signed


def _own_plan(pupil: Pupil) -> dict[str, Any]:
    work = next(iter(pupil.machine.view.planned[A.node].values()))
    return {"plan": work.position, "round": work.round, "base": work.base, "data": (work.data,)}


def test_work_that_has_expired_is_stopped() -> None:
    pupil = _late(staleness=1)
    pupil.has_state(_seal_without(pupil))
    assert not pupil.wanted(StopTraining)
    _seal_without(pupil)
    assert len(pupil.wanted(StopTraining)) == 1


@pytest.mark.parametrize("body", [Rewind(to=0, reason="asked"), Stopped(reason="enough")])
def test_a_rewind_and_the_end_stop_work(body: Any) -> None:
    pupil = _late()
    pupil.has_state(_seal_without(pupil))
    pupil.clerk.append(body)
    pupil.catch_up()
    assert len(pupil.wanted(StopTraining)) == 1 and not pupil.wanted(Train)


def test_a_state_that_is_dropped_takes_the_work_on_it_along() -> None:
    """Otherwise steps on the old state would end up in an update that is measured from the new one."""
    pupil = _late(staleness=9)
    for number in range(3):
        pupil.clerk.snapshot(_seal_without(pupil), f"s{number}")
    pupil.catch_up()
    assert len(pupil.wanted(Load)) == 1 and len(pupil.wanted(StopTraining)) == 1
    pupil.has_state(pupil.wanted(Load)[0].saved.at)
    assert pupil.wanted(Train)[0].planned.round == 0, "and it is begun again from there"


def test_new_work_begins_from_a_state_no_older_than_its_plan() -> None:
    pupil = Pupil(A, B)
    _plan(pupil, B)
    pupil.settle_in()
    at = pupil.clerk.seal(B)
    position = _plan(pupil, A, B)
    pupil.catch_up()
    assert not pupil.wanted(Train), "it has not folded the seal that the plan stands on"
    pupil.clerk.seal(B)
    pupil.catch_up()
    pupil.has_state(at)
    (train,) = pupil.wanted(Train)
    assert train.planned.position == position, "the newest seal need not be here yet"
    assert len(pupil.wanted(Fold)) == 1, "it is folded meanwhile"


def test_what_is_on_its_way_is_known_until_its_seal_is_folded() -> None:
    pupil = _late()
    made = pupil.outgoing(sequence=0)
    pupil.step(Trained(made))
    pupil.step(TrainingEnded(made.claim.plan))
    pupil.publish(made)
    first = _seal_without(pupil)
    values = {**_own_plan(pupil), "sequence": 0}
    items = (accepted(pupil.clerk.view, A, **values), accepted(pupil.clerk.view, B))
    second = pupil.clerk.append(pupil.clerk.seal_body(accepted=items))
    pupil.catch_up()
    pupil.has_state(first)
    assert pupil.wanted(Adopt) == [Adopt(first, settled=-1)], "the log has it, this state has not"
    pupil.has_state(second)
    assert pupil.wanted(Adopt) == [Adopt(second, settled=0)]


def test_states_are_attested_evaluated_and_saved_at_the_rules_rhythm() -> None:
    strategy = {
        "preset": "local-sgd",
        "seal": {"kind": "arrivals", "attest_every": 2},
        "merge": {"kind": "add-delta"},
    }
    recipe = small_recipe(strategy=strategy, storage={"snapshot_every": 2}, evaluation={"every": 1})
    pupil = Pupil(A, B, recipe=recipe)
    _plan(pupil, B)
    pupil.settle_in()
    attested, saved = [], []
    for _ in range(8):
        at = _seal_without(pupil)
        saved.append(pupil.wanted(Fold)[0].snapshot)
        pupil.has_state(at)
        attested.append(bool(pupil.wanted(SendAttestation)))
        pupil.step(Ticked())
        assert bool(pupil.wanted(SendAttestation)) == attested[-1]
    assert attested == [False, True] * 4 and saved == [False, False, False, True] * 2


def test_the_final_state_is_attested_whatever_the_rhythm() -> None:
    strategy = {"preset": "local-sgd", "seal": {"kind": "arrivals", "attest_every": 100}}
    pupil = Pupil(A, B, recipe=small_recipe(strategy=strategy))
    _plan(pupil, B)
    pupil.settle_in()
    at = _seal_without(pupil)
    pupil.has_state(at, "last")
    assert not pupil.wanted(SendAttestation)
    pupil.clerk.append(Stopped(reason="enough"))
    pupil.catch_up()
    pupil.has_state(at, "last", snapshot="5" * 64)
    assert pupil.wanted(SendAttestation)[0].snapshot == "5" * 64
