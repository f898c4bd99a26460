"""The coordinator's machine, one event at a time: nodes come and go, and it is killed and started again."""

import pytest
from runlog.small_log import (
    COORDINATOR,
    NODES,
    make_claim,
    make_offer,
    small_recipe,
)

from shoal.coordinator.events import (
    Append,
    Arrived,
    Dismiss,
    Drop,
    Keep,
    Lost,
    RewindAsked,
    Send,
    SendEntries,
    StopAsked,
    Tell,
)
from shoal.coordinator.machine import CHANGES_A_ROUND
from shoal.runlog.entries import (
    Joined,
    Left,
    Seal,
)
from shoal.runlog.view import MAX_TEXT
from shoal.wire.messages import (
    Beat,
    Goodbye,
    Heartbeat,
    NeedEntries,
    Peers,
    Welcome,
)

from .desk import Desk, members, open_round, stay

A, B, C, D = NODES[:4]


# --- coming and going -------------------------------------------------------------------------------------


def test_a_newcomer_is_entered_welcomed_and_given_the_log() -> None:
    desk = Desk()
    desk.step(Arrived(node=A.node, public=A.public, name="ann", address="h:1", length=1))
    assert desk.appended()[0] == Joined(node=A.node, public=A.public, name="ann")
    welcome = desk.sent(A, Welcome)[0]
    assert welcome.length == desk.view.length == 2 and welcome.heartbeat_s == 1.0
    assert desk.wanted(SendEntries) == [SendEntries(A.node, 1)]
    kinds = [type(effect) for effect in desk.effects]
    assert kinds.index(Append) < kinds.index(Send), "nothing is said before it is durable"
    desk.step(Arrived(node=A.node, public=A.public, name="ann", address="h:1", length=2))
    assert desk.wanted(SendEntries) == [], "it has all of it"


def test_rounds_wait_for_enough_ready_nodes() -> None:
    desk = Desk(small_recipe(membership=members(2)))
    desk.join(A)
    assert desk.view.plan is None and "1 more ready node" in desk.machine.waiting_for
    desk.arrive(B)
    assert desk.view.plan is None, "B has not said that it has the state"
    desk.beat(B)
    plan = desk.view.plan
    assert plan is not None and [m.node for m in plan.members] == sorted((A.node, B.node))
    assert plan.deadline_ms == 10_000


def test_a_member_that_comes_back_is_not_entered_twice() -> None:
    desk = open_round(A, B)
    length = desk.view.length
    desk.arrive(A)
    assert desk.view.length == length


def test_one_that_left_is_entered_again() -> None:
    desk = open_round(A, B)
    desk.seal_round(A, B)
    desk.say(A, Goodbye(reason="night"))
    assert Left(node=A.node, reason="night") in desk.appended() and not desk.view.members[A.node].present
    desk.seal_round(B)
    desk.arrive(A)
    assert any(isinstance(body, Joined) for body in desk.appended())
    assert desk.view.members[A.node].present
    desk.check()


def test_coming_and_going_does_not_fill_the_log() -> None:
    """At most a few membership entries for each node and round, and it may take part all the same."""
    desk = open_round(A, B)
    desk.seal_round(A, B)
    length = desk.view.length
    for _ in range(50):
        desk.say(A, Goodbye(reason="bye"))
        desk.arrive(A)
        assert desk.sent(A, Welcome)
    assert desk.view.length == length + CHANGES_A_ROUND
    desk.beat(A)
    desk.seal_round(A, B)
    assert {update.claim.node for update in desk.view.path[-1].updates} == {A.node, B.node}
    desk.check()


def test_reasons_and_names_are_cut_to_what_an_entry_may_say() -> None:
    desk = open_round(A, B)
    desk.seal_round(A, B)
    desk.say(A, Goodbye(reason="x" * 100_000))
    left = next(body for body in desk.appended() if isinstance(body, Left))
    assert len(left.reason) == MAX_TEXT
    desk.step(StopAsked("x" * 100_000))
    assert desk.view.stopped == "x" * MAX_TEXT
    desk.check()


def test_the_run_takes_so_many_nodes_and_no_more() -> None:
    desk = open_round(A, B, recipe=small_recipe(membership={**members(2), "max_nodes": 2}))
    length = desk.view.length
    desk.arrive(C)
    refuse = desk.wanted(Dismiss)[0].refuse
    assert refuse.code == "SH-JOIN-11" and "2 nodes" in refuse.cause and refuse.next_step
    assert desk.sent(C, Welcome) == [] and desk.view.length == length
    desk.say(A, Goodbye(reason="night"))
    desk.arrive(C)
    assert desk.wanted(Dismiss), "who left may return: its place is not given away"
    desk.arrive(A)
    assert desk.sent(A, Welcome)


def test_heartbeats_are_answered_with_the_logs_length_and_the_peers() -> None:
    desk = open_round(A, B)
    desk.beat(A)
    assert desk.sent(A, Beat) == [Beat(length=desk.view.length)]
    peers = desk.sent(A, Peers)[0]
    assert [peer.node for peer in peers.peers] == [*sorted((A.node, B.node)), COORDINATOR.node]
    desk.say(A, Heartbeat(at=0, length=1, peers=peers.edition, doing=""))
    assert desk.sent(A, Peers) == [], "it has this edition"


def test_peers_that_cannot_be_reached_are_not_named() -> None:
    desk = Desk(small_recipe(membership=members(2)))
    desk.arrive(A, address="")
    desk.arrive(B)
    assert [peer.node for peer in desk.told(Peers)[-1].peers] == [B.node, COORDINATOR.node]
    desk.step(Lost(B.node))
    assert [peer.node for peer in desk.told(Peers)[-1].peers] == [COORDINATOR.node]


def test_peers_are_told_only_when_somebody_came_within_reach_or_out_of_it() -> None:
    desk = Desk(small_recipe(membership=members(2)))
    desk.arrive(A)
    assert len(desk.told(Peers)) == 1
    desk.beat(A)
    assert desk.told(Peers) == []
    desk.arrive(A)
    assert desk.told(Peers) == [], "the same address as before"
    desk.arrive(A, address="h:2")
    assert [peer.address for peer in desk.told(Peers)[-1].peers] == ["h:2", "coordinator:1"]
    desk.arrive(B, address="")
    assert desk.told(Peers) == [], "it serves nothing"
    desk.tick(7)
    assert [peer.node for peer in desk.told(Peers)[-1].peers] == [COORDINATOR.node], "its lease ran out"
    desk.tick(7)
    assert desk.told(Peers) == []


def test_editions_rise_over_restarts() -> None:
    desk = open_round(A, B)
    desk.step(Lost(A.node))
    before = desk.told(Peers)[-1].edition
    desk.restart()
    desk.arrive(A)
    assert desk.told(Peers)[-1].edition > before


def test_strangers_are_not_heard() -> None:
    desk = open_round(A, B)
    for message in (Heartbeat(at=0, length=1, peers=0, doing=""), NeedEntries(start=0), Goodbye(reason="")):
        assert [e for e in desk.say(C, message) if not isinstance(e, Tell)] == []
    desk.step(Lost(A.node))
    desk.say(A, NeedEntries(start=0))
    assert desk.wanted(SendEntries) == [], "its channel is gone"


@pytest.mark.parametrize("start", [-1, -(2**63), 2**63, 2**64 - 1])
def test_a_page_that_is_not_in_the_log_is_not_asked_of_the_store(start: int) -> None:
    """The store's own integers have limits; a member must not be able to run it against them."""
    desk = open_round(A)
    desk.say(A, NeedEntries(start=start))
    assert all(0 <= page.start <= desk.view.length for page in desk.wanted(SendEntries))
    desk.step(Arrived(node=A.node, public=A.public, name="", address="", length=start))
    assert all(0 <= page.start <= desk.view.length for page in desk.wanted(SendEntries))


# --- restarts ---------------------------------------------------------------------------------------------


def test_a_kept_claim_survives_a_restart() -> None:
    desk = open_round(A, B)
    offer = make_offer(desk.view, A)
    assert desk.offer(A, offer).kept
    desk.restart()
    assert desk.view.plan is not None
    term = desk.view.term
    desk.tick()
    assert desk.view.round == 0, "the planned members get a lease to come back"
    desk.arrive(A, B)
    assert desk.offer(A, offer).kept and desk.wanted(Keep) == []
    assert desk.offer(B).kept
    assert len(desk.view.path[0].updates) == 2 and desk.view.term == term + 1
    desk.check()


def test_after_a_restart_nobody_is_waited_for_longer_than_a_lease() -> None:
    desk = open_round(A, B)
    assert desk.offer(A).kept
    desk.restart()
    desk.arrive(A)
    stay(desk, 6, A)
    assert desk.view.round == 1 and desk.view.path[0].updates[0].claim.node == A.node


def test_a_claim_that_was_sealed_before_the_crash_is_dropped_and_not_counted_again() -> None:
    desk = open_round(A, B)
    desk.seal_round(A, B)
    desk.restart()
    desk.join(A, B)
    desk.seal_round(A, B)
    dropped = {drop.key for drop in desk.wanted(Drop)}
    assert dropped == set(desk.kept), "the old round's keys and the new one's"
    desk.check()


def test_a_kept_claim_that_a_rewind_made_void_is_rejected_in_the_next_seal() -> None:
    desk = open_round(A, B)
    first = desk.seal_round(A, B)
    desk.attest(A, "s1")
    desk.beat(A, B)
    desk.seal_round(A, B)
    assert desk.offer(A).kept
    sequence = make_claim(desk.view, A).sequence
    desk.step(RewindAsked(first, "asked"))
    desk.restart()
    desk.join(A, B)
    desk.tick()
    desk.offer(A, sequence=sequence + 1)
    desk.offer(B)
    seal = next(body for body in desk.appended() if isinstance(body, Seal))
    assert [(r.node, r.sequence) for r in seal.rejected] == [(A.node, sequence)]
    desk.check()


def test_every_entry_says_what_it_is() -> None:
    """By this name a process can be killed just before or after a certain kind of entry."""
    desk = open_round(A, B)
    assert desk.wanted(Append)[-1].kind == "plan"
    for node in (A, B):
        desk.offer(node)
    assert [append.kind for append in desk.wanted(Append)] == ["seal", "plan"]
    desk.step(RewindAsked(0, "asked"))
    assert desk.wanted(Append)[0].kind == "rewind"
    desk.step(StopAsked("enough"))
    assert [append.kind for append in desk.wanted(Append)] == ["stopped"]


def test_entries_are_signed_with_a_higher_term_after_every_start() -> None:
    desk = open_round(A, B)
    terms = [desk.view.term]
    for _ in range(3):
        desk.restart()
        desk.join(A, B)
        desk.seal_round(A, B)
        terms.append(desk.view.term)
    assert terms == sorted(set(terms)) and len(terms) == 4
    desk.check()
