"""How a run ends, what is settled then, and what may still be said afterwards."""

from typing import Any

import pytest
from runlog.small_log import (
    BATCH,
    NODES,
    STEPS,
    make_claim,
    small_recipe,
)

from shoal.coordinator.claims import PREFIX
from shoal.coordinator.events import (
    Dismiss,
    Drop,
    RewindAsked,
    StopAsked,
)
from shoal.runlog.entries import (
    Seal,
    Stopped,
)
from shoal.wire.messages import (
    Entries,
    Welcome,
)

from .desk import fetched, members, open_round, snapshot_of, stay

A, B, C, D = NODES[:4]


def test_stop() -> None:
    desk = open_round(A, B)
    desk.step(StopAsked("enough"))
    assert desk.appended() == [Stopped(reason="enough")] and desk.told(Entries)
    desk.step(StopAsked("again"))
    assert desk.appended() == []
    desk.tick(1000)
    assert desk.appended() == [] and desk.view.plan is None
    desk.check()


def test_after_the_stop_members_may_return_and_strangers_may_not() -> None:
    desk = open_round(A, B)
    desk.step(StopAsked("enough"))
    desk.arrive(C)
    assert [d.refuse.code for d in desk.wanted(Dismiss)] == ["SH-JOIN-08"]
    assert desk.sent(C, Welcome) == []
    desk.arrive(A)
    assert desk.sent(A, Welcome) and desk.appended() == []
    assert not desk.offer(A).kept
    desk.step(RewindAsked(0, "late"))
    assert desk.appended() == []


def test_the_final_state_is_saved_after_the_stop() -> None:
    desk = open_round(A, B, recipe=small_recipe(membership=members(2), budget={"rounds": 1}))
    at = desk.seal_round(A, B)
    assert desk.view.stopped == "1 rounds done" and not desk.machine.finished
    desk.tick()
    assert "final state" in desk.machine.waiting_for
    blob = snapshot_of("s")
    desk.attest(A, "s", snapshot=blob)
    desk.attest(B, "s", snapshot=blob)
    desk.step(fetched(at, blob))
    assert desk.machine.finished and "over" in desk.machine.waiting_for
    desk.check()


@pytest.mark.parametrize(
    ("budget", "rounds", "why"),
    [
        ({"rounds": 2}, 2, "2 rounds done"),
        ({"tokens": 4 * STEPS * BATCH}, 2, f"{4 * STEPS * BATCH} tokens done"),
        ({"seconds": 30}, 3, "33 seconds done"),
    ],
)
def test_budgets(budget: dict[str, Any], rounds: int, why: str) -> None:
    desk = open_round(A, B, recipe=small_recipe(membership=members(2), budget=budget))
    for number in range(rounds):
        assert desk.view.stopped is None, number
        stay(desk, 5, A, B)
        assert desk.offer(A).kept
        stay(desk, 4, A, B)
        desk.now += 2
        assert desk.offer(B).kept
        desk.beat(A, B)
    assert desk.view.stopped == why
    desk.check()


def test_a_restart_after_the_end_stays_at_the_end() -> None:
    desk = open_round(A, B)
    desk.step(StopAsked("enough"))
    desk.restart()
    desk.tick(50)
    assert desk.appended() == [] and desk.view.stopped == "enough"


def test_an_acknowledged_claim_is_sealed_at_the_stop() -> None:
    """`kept` promised that the claim would be settled."""
    desk = open_round(A, B)
    assert desk.offer(A).kept
    key = next(iter(desk.kept))
    desk.step(StopAsked("enough"))
    seal, stopped = desk.appended()
    assert isinstance(seal, Seal) and stopped == Stopped(reason="enough")
    assert [update.claim.node for update in desk.view.path[0].updates] == [A.node]
    assert Drop(key) in desk.effects and not desk.machine.finished, "its state is still to be saved"
    desk.check()


def test_a_crash_right_after_the_stop_leaves_no_claim_behind() -> None:
    desk = open_round(A, B)
    assert desk.offer(A).kept
    desk.step(StopAsked("enough"))
    desk.restart()  # The entries were durable; nothing was dropped.
    desk.tick()
    assert {drop.key for drop in desk.wanted(Drop)} == set(desk.kept) != set()
    desk.tick()
    assert desk.wanted(Drop) == []


def test_an_acknowledged_claim_that_a_rewind_undid_is_rejected_at_the_stop() -> None:
    desk = open_round(A, B)
    first = desk.seal_round(A, B)
    desk.beat(A, B)
    desk.seal_round(A, B)
    assert desk.offer(A).kept
    sequence = make_claim(desk.view, A).sequence
    key = f"{PREFIX}{A.node}.{sequence}"
    assert key in desk.kept
    desk.step(RewindAsked(first, "diverged"))
    desk.step(StopAsked("enough"))
    assert Drop(key) in desk.effects
    (stopped,) = desk.appended()
    assert isinstance(stopped, Stopped)
    assert [(item.node, item.sequence) for item in stopped.rejected] == [(A.node, sequence)]
    assert "diverged" in stopped.rejected[0].reason
    assert desk.view.members[A.node].last_sequence == sequence
    desk.check()


def test_a_budget_that_is_spent_settles_as_a_stop_does() -> None:
    desk = open_round(A, B, recipe=small_recipe(membership=members(2), budget={"rounds": 1}))
    desk.seal_round(A, B)
    assert [type(body) for body in desk.appended()] == [Seal, Stopped]
    assert {drop.key for drop in desk.wanted(Drop)} == set(desk.kept)


def test_a_run_that_ended_badly_can_be_rewound() -> None:
    desk = open_round(A, B)
    first = desk.seal_round(A, B)
    desk.beat(A, B)
    desk.seal_round(A, B)
    desk.step(StopAsked("enough"))
    desk.step(RewindAsked(first, "the last round was poisoned"))
    assert desk.view.at == first and desk.view.stopped == "enough" and desk.view.plan is None
    desk.attest(A, "s", snapshot=snapshot_of("s"))
    desk.attest(B, "s", snapshot=snapshot_of("s"))
    desk.step(fetched(first, snapshot_of("s")))
    assert desk.machine.finished
    desk.check()
