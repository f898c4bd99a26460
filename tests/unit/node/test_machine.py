"""The node's machine, one event at a time."""

from typing import Any

import pytest
from runlog.small_log import (
    COORDINATOR,
    NODES,
    OTHER_RUN,
    STRANGER,
    Clerk,
    accepted,
    blob_id,
    make_claim,
    small_recipe,
)

from shoal.node.events import (
    Adopt,
    CancelState,
    CannotFetch,
    Disconnected,
    Disputed,
    Finish,
    Fold,
    Heard,
    Load,
    Prepare,
    Prepared,
    Prune,
    Publish,
    Published,
    PushTo,
    Record,
    SaveSnapshot,
    SendAttestation,
    StartOver,
    StopTraining,
    Ticked,
    Train,
    Trained,
    TrainingEnded,
)
from shoal.node.machine import LOOK_BACK, OFFER_AGAIN_S
from shoal.runlog.entries import Rewind, Stopped
from shoal.wire import messages as m
from shoal.wire.messages import ClaimAck, NeedEntries, Offer, PleasePush, Rebuild, Stuck

from .pupil import Pupil

A, B, C = NODES[:3]


def _at_work(*others: Any, recipe: Any = None) -> Pupil:
    """A node in the middle of its first round."""
    pupil = Pupil(A, B, *others, recipe=recipe)
    pupil.clerk.plan(A, B)
    pupil.settle_in()
    assert pupil.wanted(Train)
    return pupil


def _sealed(pupil: Pupil, *more: Any) -> int:
    """The open round is sealed with the claim the node made."""
    made = pupil.train()
    pupil.publish(made)
    claims = [accepted(pupil.clerk.view, node) for node in (B, *more)]
    own = accepted(pupil.clerk.view, A, sequence=made.claim.sequence)
    position = pupil.clerk.append(
        pupil.clerk.seal_body(**{"accepted": tuple(sorted([own, *claims], key=lambda i: i.claim.payload))})
    )
    pupil.catch_up()
    return position


# --- the log -----------------------------------------------------------------------------------------------


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
    pupil = _at_work()
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
    pupil = _at_work()
    one, two = (pupil.clerk.make(Stopped(reason=reason)) for reason in ("one", "two"))
    pupil.hear(one.encoded)
    assert pupil.wanted(Disputed) == []
    pupil.hear(one.encoded)
    assert pupil.wanted(Disputed) == []
    pupil.hear(two.encoded)
    assert pupil.wanted(Disputed) == [Disputed(one.entry.position, two.encoded)]


def test_a_log_that_does_not_follow_is_compared_from_further_back() -> None:
    pupil = _at_work()
    fork = Clerk()
    for link in pupil.clerk.links[:-1]:
        fork.view.apply(link)
    fork.plan(A)
    other = fork.make(Stopped(reason="on another branch"))
    pupil.hear(other.encoded)
    assert pupil.sent(NeedEntries) == [NeedEntries(start=max(0, pupil.machine.view.length - LOOK_BACK))]
    pupil.hear(fork.links[0].encoded)
    assert len(pupil.wanted(Disputed)) == 1


# --- getting ready -----------------------------------------------------------------------------------------


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
    assert train.assignment.node == A.node and train.plan_position == pupil.machine.view.plan_position


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


# --- training and claiming ---------------------------------------------------------------------------------


def test_a_claim_goes_out_with_its_receipts_until_it_is_kept() -> None:
    pupil = _at_work()
    made = pupil.train()
    assert pupil.wanted(Publish) == [Publish(made)]
    pupil.publish(made)
    offer = pupil.sent(Offer)[0]
    assert offer.claim == made.signed and len(offer.receipts) == 1
    pupil.step(Ticked())
    assert pupil.sent(Offer) == [], "not at every tick"
    pupil.now += OFFER_AGAIN_S
    pupil.step(Ticked())
    assert pupil.sent(Offer)[0].claim == made.signed, "the same bytes, never encoded anew"
    pupil.step(Heard(ClaimAck(sequence=made.claim.sequence, kept=True, reason="kept")))
    pupil.now += 100
    pupil.step(Ticked())
    assert pupil.sent(Offer) == [] and not pupil.wanted(Train), "one claim a round"


def _refuse(pupil: Pupil, sequence: int, *, retry: bool = False) -> None:
    ack = ClaimAck(sequence=sequence, kept=False, retry=retry, reason="1 of 2 receipts")
    pupil.step(Heard(ack))


def test_a_claim_with_too_few_receipts_gathers_others_the_coordinators_among_them() -> None:
    pupil = _at_work()
    made = pupil.train()
    pupil.publish(made)
    _refuse(pupil, made.claim.sequence, retry=True)
    assert pupil.machine.why_out == "1 of 2 receipts" and not pupil.wanted(StartOver)
    assert not pupil.wanted(Publish), "in a while"
    pupil.now += OFFER_AGAIN_S
    pupil.step(Ticked())
    assert pupil.wanted(Publish) == [Publish(made, to_coordinator=True)]
    pupil.publish(made)
    assert pupil.sent(Offer)[0].claim == made.signed, "the same bytes, with other receipts"
    pupil.step(Heard(ClaimAck(sequence=99, kept=True, reason="of another claim")))
    assert pupil.machine.why_out
    pupil.step(Heard(ClaimAck(sequence=made.claim.sequence, kept=True, reason="kept")))
    assert pupil.machine.why_out == ""


def test_a_claim_that_is_refused_for_good_is_made_anew_from_the_current_state() -> None:
    pupil = _at_work()
    made = pupil.train()
    pupil.publish(made)
    _refuse(pupil, made.claim.sequence)
    assert pupil.wanted(StartOver) == [StartOver()]
    (train,) = pupil.wanted(Train)
    assert train.plan_position == made.claim.plan
    kinds = [type(effect) for effect in pupil.effects]
    assert kinds.index(StartOver) < kinds.index(Train)
    again = pupil.train()
    assert again.claim.sequence == made.claim.sequence + 1, "never the same sequence for other bytes"
    pupil.publish(again)
    assert pupil.sent(Offer)[0].claim == again.signed


def test_spare_steps_of_a_refused_claim_end_before_the_work_begins_anew() -> None:
    """They lie after the assignment's first samples: counted before them, they would make the next claim refused
    in its turn, and every one after it."""
    pupil = _at_work()
    made = pupil.outgoing(sequence=pupil.machine.next_sequence)
    pupil.step(Trained(made))  # The task goes on with its spare steps.
    pupil.publish(made)
    _refuse(pupil, made.claim.sequence)
    kinds = [type(effect) for effect in pupil.effects]
    assert kinds == [StopTraining, StartOver], "and no second task beside the first"
    pupil.step(TrainingEnded(made.claim.plan))
    assert len(pupil.wanted(Train)) == 1


def test_a_refusal_of_a_past_rounds_claim_changes_nothing() -> None:
    pupil = _at_work()
    made = pupil.train()
    pupil.publish(made)
    pupil.clerk.seal(B)
    pupil.catch_up()
    _refuse(pupil, made.claim.sequence)
    assert not pupil.wanted(StartOver)


def test_without_receipts_it_is_published_again() -> None:
    pupil = _at_work()
    made = pupil.train()
    pupil.step(Published(made.claim.sequence, ()))
    assert pupil.wanted(Publish) == [Publish(made)] and pupil.sent(Offer) == []


def test_without_a_connection_nothing_is_offered() -> None:
    pupil = _at_work()
    made = pupil.outgoing()
    pupil.step(Disconnected())
    pupil.step(Trained(made))
    assert not pupil.wanted(Publish)


def test_after_a_crash_the_same_claim_goes_out_and_nothing_is_trained_twice() -> None:
    pupil = _at_work()
    made = pupil.train()
    pupil.restart(made)
    assert pupil.machine.next_sequence == made.claim.sequence + 1
    pupil.settle_in()
    pupil.step(Ticked())
    assert not pupil.wanted(Train)
    pupil.publish(made)
    assert pupil.sent(Offer)[0].claim == made.signed


def test_a_crash_before_the_claim_was_durable_trains_again() -> None:
    pupil = _at_work()
    pupil.train()
    pupil.restart(None)
    pupil.settle_in()
    assert pupil.wanted(Train)


def test_a_claim_of_a_past_round_is_not_offered_again() -> None:
    pupil = _at_work()
    made = pupil.train()
    pupil.clerk.seal(B)
    pupil.clerk.plan(A, B)
    pupil.catch_up()
    pupil.publish(made)
    assert pupil.sent(Offer) == []
    assert pupil.machine.next_sequence == made.claim.sequence + 1


def test_sequences_are_above_all_that_were_settled() -> None:
    pupil = _at_work()
    _sealed(pupil)
    pupil.restart(None)
    assert pupil.machine.next_sequence == 1


def test_training_that_a_seal_or_a_rewind_made_stale_is_stopped() -> None:
    pupil = _at_work()
    pupil.clerk.seal(B)
    pupil.catch_up()
    assert pupil.wanted(StopTraining) and pupil.wanted(Fold) and not pupil.wanted(Train)

    pupil = _at_work()
    pupil.clerk.append(Rewind(to=0, reason="asked"))
    pupil.clerk.plan(A)
    pupil.catch_up()
    assert pupil.wanted(StopTraining)
    assert pupil.wanted(Train)[0].plan_position == pupil.machine.view.plan_position


def test_a_rewind_that_leaves_the_state_standing_starts_the_local_model_over() -> None:
    """What was trained before it was claimed in vain, or never: it must not reach the next update."""
    pupil = _at_work()
    first = _sealed(pupil)
    pupil.has_state(first)
    pupil.clerk.plan(A, B)
    pupil.catch_up()
    assert pupil.wanted(Train)
    pupil.clerk.append(Rewind(to=first, reason="asked"))
    pupil.catch_up()
    assert pupil.wanted(StartOver) == [StartOver()] and pupil.wanted(StopTraining)
    assert pupil.machine.at == first and not pupil.wanted(Load)


def test_a_rewind_that_undoes_the_state_loads_another_which_starts_over_by_itself() -> None:
    pupil = _at_work()
    pupil.has_state(_sealed(pupil))
    pupil.clerk.append(Rewind(to=0, reason="asked"))
    pupil.catch_up()
    assert not pupil.wanted(StartOver) and [load.saved.at for load in pupil.wanted(Load)] == [0]


def test_another_plan_of_the_same_round_lets_training_go_on() -> None:
    pupil = _at_work()
    pupil.clerk.plan(A)
    pupil.catch_up()
    assert not pupil.wanted(StopTraining) and not pupil.wanted(Train)
    pupil.step(TrainingEnded(3))
    assert pupil.wanted(Train)[0].plan_position == pupil.machine.view.plan_position


# --- states ------------------------------------------------------------------------------------------------


def test_a_seal_is_folded_adopted_and_attested() -> None:
    pupil = _at_work()
    at = _sealed(pupil)
    fold = pupil.wanted(Fold)[0]
    assert fold.step.position == at and not fold.snapshot
    pupil.has_state(at, "s1")
    assert pupil.wanted(Adopt) == [Adopt(at)]
    assert pupil.wanted(SendAttestation) == [SendAttestation(at, "s1", None, None)]
    pupil.step(Ticked())
    assert pupil.wanted(SendAttestation), "said again until the log has it"
    pupil.clerk.attest(at, "s1", A)
    pupil.catch_up()
    pupil.step(Ticked())
    assert pupil.wanted(SendAttestation) == []


def test_every_second_round_is_a_snapshot_and_each_evaluates_in_turn() -> None:
    pupil = _at_work(recipe=small_recipe(evaluation={"every": 1}))
    evaluated = []
    for number in range(4):
        at = _sealed(pupil)
        fold = pupil.wanted(Fold)[0]
        assert fold.snapshot == (number % 2 == 1)
        evaluated.append(fold.evaluate)
        pupil.has_state(at)
        pupil.clerk.plan(A, B)
        pupil.catch_up()
    assert sorted(evaluated) == [False, False, True, True]


def test_a_rewind_cancels_the_fold_and_rebuilds() -> None:
    pupil = _at_work()
    first = _sealed(pupil)
    pupil.has_state(first)
    pupil.clerk.plan(A, B)
    pupil.catch_up()
    second = _sealed(pupil)
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
    pupil = _at_work()
    at = _sealed(pupil)
    pupil.has_state(at, "wrong")
    pupil.step(Heard(Rebuild(at=at - 1)))
    assert pupil.machine.at == at, "not about this state"
    pupil.step(Heard(Rebuild(at=at)))
    assert pupil.machine.at == -1 and [load.saved.at for load in pupil.wanted(Load)] == [0]
    pupil.step(Ticked())
    assert pupil.wanted(SendAttestation) == [], "its word was wrong"


def test_a_dissenter_that_already_folds_on_drops_that_too() -> None:
    """What is being folded stands on the state that is wrong."""
    pupil = _at_work()
    first = _sealed(pupil)
    pupil.has_state(first, "wrong")
    pupil.clerk.plan(A, B)
    pupil.catch_up()
    second = _sealed(pupil)
    assert pupil.wanted(Fold)[0].step.position == second
    pupil.step(Heard(Rebuild(at=first)))
    assert pupil.wanted(CancelState) == [CancelState()] and [
        load.saved.at for load in pupil.wanted(Load)
    ] == [0]
    pupil.has_state(second, "on a wrong one")
    assert pupil.machine.at == -1 and not pupil.wanted(Adopt) and not pupil.wanted(SendAttestation)


def test_what_cannot_be_fetched_is_told() -> None:
    pupil = _at_work()
    at = _sealed(pupil)
    pupil.step(CannotFetch(at, blob_id("x"), 20.0))
    assert pupil.sent(Stuck) == [Stuck(at=at, blob=blob_id("x"), seconds=20.0)]


def test_what_cannot_be_fetched_is_skipped_if_a_saved_state_makes_it_unnecessary() -> None:
    pupil = _at_work()
    at = _sealed(pupil)
    pupil.clerk.snapshot(at, "s1", B.node)
    pupil.catch_up()
    pupil.step(CannotFetch(at, blob_id("x"), 20.0))
    assert pupil.sent(Stuck) == [] and pupil.wanted(CancelState)
    assert [load.saved.at for load in pupil.wanted(Load)] == [at]


def test_snapshots_prune_and_pushes_are_done() -> None:
    pupil = _at_work()
    at = _sealed(pupil)
    pupil.has_state(at)
    pupil.clerk.snapshot(at, "s")
    pupil.catch_up()
    assert pupil.wanted(Prune) == [Prune()]
    pupil.step(Heard(PleasePush(blob=blob_id("x"))))
    assert pupil.wanted(PushTo) == [PushTo(blob_id("x"))]


def test_its_own_update_is_kept() -> None:
    pupil = _at_work()
    made = pupil.train()
    assert made.claim.blob in pupil.machine.needed_blobs()


# --- the end -----------------------------------------------------------------------------------------------


def test_the_final_state_is_saved_before_it_ends() -> None:
    pupil = _at_work()
    at = _sealed(pupil)
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
    pupil = _at_work()
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
