"""The node's machine, one event at a time: the log, the states and the end."""

import pytest
from runlog.small_log import (
    COORDINATOR,
    NODES,
    OTHER_RUN,
    STRANGER,
    Clerk,
    blob_id,
    make_claim,
    small_recipe,
)

from shoal.node.events import (
    Adopt,
    CancelState,
    CannotFetch,
    Disputed,
    Finish,
    Fold,
    Heard,
    Load,
    Prepare,
    Prepared,
    Prune,
    PushTo,
    Record,
    SaveSnapshot,
    SendAttestation,
    Ticked,
    Train,
)
from shoal.node.machine import LOOK_BACK
from shoal.runlog.entries import Rewind, Stopped
from shoal.wire import messages as m
from shoal.wire.messages import NeedEntries, PleasePush, Rebuild, Stuck

from .pupil import Pupil, at_work, sealed

A, B, C = NODES[:3]


# --- the log ----------------------------------------------------------------------------------------------


def test_entries_are_checked_and_recorded_in_order() -> None:
    pupil = Pupil(A)
    pupil.catch_up()
    records = pupil.wanted(Record)
    assert [r.position for r in records] == [0, 1] and [r.encoded for r in records] == pupil.clerk.entries
    assert len(pupil.wanted(Prepare)) == 1
    pupil.hear(*pupil.clerk.entries)
    assert pupil.wanted(Record) == [], "known already"


def test_a_gap_is_asked_for() -> None:
    pupil = Pupil(A, B, C)
    pupil.hear(pupil.clerk.entries[0], pupil.clerk.entries[3])
    assert pupil.sent(NeedEntries) == [NeedEntries(start=1)]
    for message in (m.Beat(length=4), m.Welcome(run=pupil.clerk.run, heartbeat_s=1, length=4)):
        pupil.step(Heard(message))
        assert pupil.sent(NeedEntries) == [NeedEntries(start=1)]
    pupil.catch_up()
    pupil.step(Heard(m.Beat(length=4)))
    assert pupil.sent(NeedEntries) == []


def test_garbage_and_strangers_entries_change_nothing() -> None:
    pupil = at_work()
    length = pupil.machine.view.length
    forged = Clerk(identity=STRANGER, view=pupil.clerk.view).make(Stopped(reason="by a stranger"))
    foreign = Clerk(run=OTHER_RUN, view=pupil.clerk.view).make(Stopped(reason="another run"))
    for encoded in (b"", b"noise", forged.encoded, foreign.encoded):
        pupil.hear(encoded)
        assert pupil.machine.view.length == length and not pupil.wanted(Record) and not pupil.wanted(Finish)
    old = Clerk(identity=STRANGER).make(pupil.clerk.links[1].entry.body, position=1)
    pupil.hear(old.encoded)
    assert pupil.wanted(Disputed) == [], "a stranger's signature proves nothing"


@pytest.mark.parametrize(
    "other",
    [Clerk(identity=STRANGER), Clerk(run=OTHER_RUN), Clerk(run=OTHER_RUN, identity=STRANGER)],
    ids=["another coordinator", "another run", "both"],
)
def test_a_genesis_that_the_ticket_does_not_name_is_not_taken(other: Clerk) -> None:
    other.found()
    pupil = Pupil(A)
    pupil.hear(*other.entries)
    assert pupil.effects == [] and pupil.machine.view.length == 0 and pupil.machine.recipe is None
    pupil.catch_up()
    assert len(pupil.wanted(Record)) == 2, "the right one is still welcome"


def test_two_entries_for_one_position_are_disputed() -> None:
    pupil = at_work()
    one, two = (pupil.clerk.make(Stopped(reason=reason)) for reason in ("one", "two"))
    pupil.hear(one.encoded)
    assert pupil.wanted(Disputed) == []
    pupil.hear(one.encoded)
    assert pupil.wanted(Disputed) == []
    pupil.hear(two.encoded)
    assert pupil.wanted(Disputed) == [Disputed(one.entry.position, two.encoded)]


def test_a_log_that_does_not_follow_is_compared_from_further_back() -> None:
    pupil = at_work()
    fork = Clerk()
    for link in pupil.clerk.links[:-1]:
        fork.view.apply(link)
    fork.plan(A)
    other = fork.make(Stopped(reason="on another branch"))
    pupil.hear(other.encoded)
    assert pupil.sent(NeedEntries) == [NeedEntries(start=max(0, pupil.machine.view.length - LOOK_BACK))]
    pupil.hear(fork.links[0].encoded)
    assert len(pupil.wanted(Disputed)) == 1


# --- getting ready ----------------------------------------------------------------------------------------


def test_data_then_state_then_training() -> None:
    pupil = Pupil(A, B)
    pupil.clerk.plan(A, B)
    pupil.catch_up()
    assert len(pupil.wanted(Prepare)) == 1 and not pupil.wanted(Load)
    pupil.step(Ticked())
    assert not pupil.wanted(Prepare) and pupil.machine.doing == "fetching the data"
    pupil.step(Prepared())
    load = pupil.wanted(Load)[0]
    assert load.saved.at == 0 and not pupil.wanted(Train)
    pupil.has_state(0)
    assert pupil.wanted(Adopt) == [Adopt(0)] and pupil.wanted(SendAttestation) == []
    train = pupil.wanted(Train)[0]
    assert (
        train.planned.assignment.node == A.node and train.planned.position == pupil.machine.view.plan_position
    )


def test_a_late_joiner_begins_at_the_latest_saved_state() -> None:
    pupil = Pupil(A, B)
    clerk = pupil.clerk
    for number in range(3):
        clerk.plan(B)
        at = clerk.seal(B)
        clerk.snapshot(at, f"s{number}")
    clerk.plan(B)
    last = clerk.seal(B)
    pupil.catch_up()
    pupil.step(Prepared())
    assert [load.saved.at for load in pupil.wanted(Load)] == [at]
    pupil.has_state(at)
    fold = pupil.wanted(Fold)[0]
    assert fold.step.position == last
    pupil.has_state(last)
    assert pupil.machine.at == last and pupil.wanted(SendAttestation)[0].at == last
    pupil.step(Ticked())
    assert not pupil.wanted(Train), "it is not in the plan"


# --- states -----------------------------------------------------------------------------------------------


def test_a_seal_is_folded_adopted_and_attested() -> None:
    pupil = at_work()
    at = sealed(pupil)
    fold = pupil.wanted(Fold)[0]
    assert fold.step.position == at and not fold.snapshot
    pupil.has_state(at, "s1")
    assert pupil.wanted(Adopt) == [Adopt(at, settled=0)]
    assert pupil.wanted(SendAttestation) == [SendAttestation(at, "s1", None, None)]
    pupil.step(Ticked())
    assert pupil.wanted(SendAttestation), "said again until the log has it"
    pupil.clerk.attest(at, "s1", A)
    pupil.catch_up()
    pupil.step(Ticked())
    assert pupil.wanted(SendAttestation) == []


def test_every_second_round_is_a_snapshot_and_each_evaluates_in_turn() -> None:
    pupil = at_work(recipe=small_recipe(evaluation={"every": 1}))
    evaluated = []
    for number in range(4):
        at = sealed(pupil)
        fold = pupil.wanted(Fold)[0]
        assert fold.snapshot == (number % 2 == 1)
        evaluated.append(fold.evaluate)
        pupil.has_state(at)
        pupil.clerk.plan(A, B)
        pupil.catch_up()
    assert sorted(evaluated) == [False, False, True, True]


def test_a_rewind_cancels_the_fold_and_rebuilds() -> None:
    pupil = at_work()
    first = sealed(pupil)
    pupil.has_state(first)
    pupil.clerk.plan(A, B)
    pupil.catch_up()
    second = sealed(pupil)
    assert pupil.wanted(Fold)[0].step.position == second
    pupil.clerk.append(Rewind(to=0, reason="asked"))
    pupil.catch_up()
    assert pupil.wanted(CancelState) == [CancelState()]
    assert [load.saved.at for load in pupil.wanted(Load)] == [0]
    pupil.has_state(second)
    assert pupil.machine.at == -1 and not pupil.wanted(Adopt), "too late: it was undone"
    pupil.has_state(0)
    assert pupil.machine.at == 0


def test_a_dissenter_drops_its_state_and_rebuilds() -> None:
    pupil = at_work()
    at = sealed(pupil)
    pupil.has_state(at, "wrong")
    pupil.step(Heard(Rebuild(at=at - 1)))
    assert pupil.machine.at == at, "not about this state"
    pupil.step(Heard(Rebuild(at=at)))
    assert pupil.machine.at == -1 and [load.saved.at for load in pupil.wanted(Load)] == [0]
    pupil.step(Ticked())
    assert pupil.wanted(SendAttestation) == [], "its word was wrong"


def test_a_dissenter_that_already_folds_on_drops_that_too() -> None:
    """What is being folded stands on the state that is wrong."""
    pupil = at_work()
    first = sealed(pupil)
    pupil.has_state(first, "wrong")
    pupil.clerk.plan(A, B)
    pupil.catch_up()
    second = sealed(pupil)
    assert pupil.wanted(Fold)[0].step.position == second
    pupil.step(Heard(Rebuild(at=first)))
    assert pupil.wanted(CancelState) == [CancelState()] and [
        load.saved.at for load in pupil.wanted(Load)
    ] == [0]
    pupil.has_state(second, "on a wrong one")
    assert pupil.machine.at == -1 and not pupil.wanted(Adopt) and not pupil.wanted(SendAttestation)


def test_what_cannot_be_fetched_is_told() -> None:
    pupil = at_work()
    at = sealed(pupil)
    pupil.step(CannotFetch(at, blob_id("x"), 20.0))
    assert pupil.sent(Stuck) == [Stuck(at=at, blob=blob_id("x"), seconds=20.0)]


def test_what_cannot_be_fetched_is_skipped_if_a_saved_state_makes_it_unnecessary() -> None:
    pupil = at_work()
    at = sealed(pupil)
    pupil.clerk.snapshot(at, "s1", B.node)
    pupil.catch_up()
    pupil.step(CannotFetch(at, blob_id("x"), 20.0))
    assert pupil.sent(Stuck) == [] and pupil.wanted(CancelState)
    assert [load.saved.at for load in pupil.wanted(Load)] == [at]


def test_snapshots_prune_and_pushes_are_done() -> None:
    pupil = at_work()
    at = sealed(pupil)
    pupil.has_state(at)
    pupil.clerk.snapshot(at, "s")
    pupil.catch_up()
    assert pupil.wanted(Prune) == [Prune()]
    pupil.step(Heard(PleasePush(blob=blob_id("x"))))
    assert pupil.wanted(PushTo) == [PushTo(blob_id("x"))]


def test_its_own_update_is_kept() -> None:
    pupil = at_work()
    made = pupil.train()
    assert made.claim.blob in pupil.machine.needed_blobs()


# --- the end ----------------------------------------------------------------------------------------------


def test_the_final_state_is_saved_before_it_ends() -> None:
    pupil = at_work()
    at = sealed(pupil)
    pupil.has_state(at, "last")
    pupil.clerk.append(Stopped(reason="enough"))
    pupil.catch_up()
    assert pupil.wanted(SaveSnapshot) == [SaveSnapshot(at)] and not pupil.wanted(Finish)
    pupil.has_state(at, "last", snapshot=blob_id("last"))
    assert pupil.wanted(SendAttestation)[0].snapshot == blob_id("last")
    pupil.step(Ticked())
    assert pupil.wanted(SendAttestation), "until it is in the log"
    pupil.clerk.snapshot(at, "last", A.node)
    pupil.catch_up()
    assert pupil.wanted(Finish) == [Finish("enough")]
    pupil.step(Ticked())
    assert not pupil.wanted(Finish)


def test_a_run_stopped_before_its_first_seal_ends_at_once() -> None:
    pupil = at_work()
    pupil.clerk.append(Stopped(reason="enough"))
    pupil.catch_up()
    assert pupil.wanted(Finish) == [Finish("enough")]


def test_the_machine_never_trains_on_a_log_it_has_not_checked() -> None:
    pupil = Pupil(A, B)
    pupil.clerk.plan(A, B)
    pupil.settle_in()
    claim = make_claim(pupil.machine.view, A)
    assert claim.head == pupil.machine.view.head == pupil.clerk.view.head
    assert pupil.machine.view.genesis is not None
    assert pupil.machine.view.genesis.coordinator == COORDINATOR.public
