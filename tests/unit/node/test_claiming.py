"""From a plan to a claim that is kept, or that must be made anew."""

from runlog.small_log import (
    NODES,
)

from shoal.node.events import (
    Disconnected,
    Fold,
    Heard,
    Load,
    Publish,
    Published,
    StartOver,
    StopTraining,
    Ticked,
    Train,
    Trained,
    TrainingEnded,
)
from shoal.node.machine import OFFER_AGAIN_S
from shoal.runlog.entries import Rewind
from shoal.wire.messages import ClaimAck, Offer

from .pupil import Pupil, at_work, sealed

A, B, C = NODES[:3]


def test_a_claim_goes_out_with_its_receipts_until_it_is_kept() -> None:
    pupil = at_work()
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
    pupil = at_work()
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
    pupil = at_work()
    made = pupil.train()
    pupil.publish(made)
    _refuse(pupil, made.claim.sequence)
    assert pupil.wanted(StartOver) == [StartOver()]
    (train,) = pupil.wanted(Train)
    assert train.planned.position == made.claim.plan
    kinds = [type(effect) for effect in pupil.effects]
    assert kinds.index(StartOver) < kinds.index(Train)
    again = pupil.train()
    assert again.claim.sequence == made.claim.sequence + 1, "never the same sequence for other bytes"
    pupil.publish(again)
    assert pupil.sent(Offer)[0].claim == again.signed


def test_spare_steps_of_a_refused_claim_end_before_the_work_begins_anew() -> None:
    """They lie after the assignment's first samples: counted before them, they would make the next claim refused
    in its turn, and every one after it."""
    pupil = at_work()
    made = pupil.outgoing(sequence=pupil.machine.next_sequence)
    pupil.step(Trained(made))  # The task goes on with its spare steps.
    pupil.publish(made)
    _refuse(pupil, made.claim.sequence)
    kinds = [type(effect) for effect in pupil.effects]
    assert kinds == [StopTraining, StartOver], "and no second task beside the first"
    pupil.step(TrainingEnded(made.claim.plan))
    assert len(pupil.wanted(Train)) == 1


def test_a_refusal_of_a_past_rounds_claim_changes_nothing() -> None:
    pupil = at_work()
    made = pupil.train()
    pupil.publish(made)
    pupil.clerk.seal(B)
    pupil.catch_up()
    _refuse(pupil, made.claim.sequence)
    assert not pupil.wanted(StartOver)


def test_without_receipts_it_is_published_again() -> None:
    pupil = at_work()
    made = pupil.train()
    pupil.step(Published(made.claim.sequence, ()))
    assert pupil.wanted(Publish) == [Publish(made)] and pupil.sent(Offer) == []


def test_without_a_connection_nothing_is_offered() -> None:
    pupil = at_work()
    made = pupil.outgoing()
    pupil.step(Disconnected())
    pupil.step(Trained(made))
    assert not pupil.wanted(Publish)


def test_after_a_crash_the_same_claim_goes_out_and_nothing_is_trained_twice() -> None:
    pupil = at_work()
    made = pupil.train()
    pupil.restart(made)
    assert pupil.machine.next_sequence == made.claim.sequence + 1
    pupil.settle_in()
    pupil.step(Ticked())
    assert not pupil.wanted(Train)
    pupil.publish(made)
    assert pupil.sent(Offer)[0].claim == made.signed


def test_a_crash_before_the_claim_was_durable_trains_again() -> None:
    pupil = at_work()
    pupil.train()
    pupil.restart(None)
    pupil.settle_in()
    assert pupil.wanted(Train)


def test_a_claim_of_a_past_round_is_not_offered_again() -> None:
    pupil = at_work()
    made = pupil.train()
    pupil.clerk.seal(B)
    pupil.clerk.plan(A, B)
    pupil.catch_up()
    pupil.publish(made)
    assert pupil.sent(Offer) == []
    assert pupil.machine.next_sequence == made.claim.sequence + 1


def test_sequences_are_above_all_that_were_settled() -> None:
    pupil = at_work()
    sealed(pupil)
    pupil.restart(None)
    assert pupil.machine.next_sequence == 1


def test_training_that_a_seal_or_a_rewind_made_stale_is_stopped() -> None:
    pupil = at_work()
    pupil.clerk.seal(B)
    pupil.catch_up()
    assert pupil.wanted(StopTraining) and pupil.wanted(Fold) and not pupil.wanted(Train)

    pupil = at_work()
    pupil.clerk.append(Rewind(to=0, reason="asked"))
    pupil.clerk.plan(A)
    pupil.catch_up()
    assert pupil.wanted(StopTraining)
    assert pupil.wanted(Train)[0].planned.position == pupil.machine.view.plan_position


def test_a_rewind_that_leaves_the_state_standing_starts_the_local_model_over() -> None:
    """What was trained before it was claimed in vain, or never: it must not reach the next update."""
    pupil = at_work()
    first = sealed(pupil)
    pupil.has_state(first)
    pupil.clerk.plan(A, B)
    pupil.catch_up()
    assert pupil.wanted(Train)
    pupil.clerk.append(Rewind(to=first, reason="asked"))
    pupil.catch_up()
    assert pupil.wanted(StartOver) == [StartOver()] and pupil.wanted(StopTraining)
    assert pupil.machine.at == first and not pupil.wanted(Load)


def test_a_rewind_that_undoes_the_state_loads_another_which_starts_over_by_itself() -> None:
    pupil = at_work()
    pupil.has_state(sealed(pupil))
    pupil.clerk.append(Rewind(to=0, reason="asked"))
    pupil.catch_up()
    assert not pupil.wanted(StartOver) and [load.saved.at for load in pupil.wanted(Load)] == [0]


def test_another_plan_of_the_same_round_lets_training_go_on() -> None:
    pupil = at_work()
    pupil.clerk.plan(A)
    pupil.catch_up()
    assert not pupil.wanted(StopTraining) and not pupil.wanted(Train)
    pupil.step(TrainingEnded(3))
    assert pupil.wanted(Train)[0].planned.position == pupil.machine.view.plan_position
