"""Many nodes: what is said to everybody is said seldom, and all the same everybody hears all of it, in order."""

from __future__ import annotations

from runlog.small_log import NODES, small_recipe

from shoal.coordinator.events import Lost, Tell
from shoal.coordinator.pacing import FEW, LOOK_S_A_NODE, MOST_UNTOLD, TELL_S_A_NODE, Pacing, Telling
from shoal.node.link import updated
from shoal.runlog.chain import read_link
from shoal.runlog.entries import Joined, Plan
from shoal.wire.identity import Identity
from shoal.wire.messages import Beat, Entries, Goodbye, Heartbeat, PeerAddress, Peers

from .desk import Desk, members

MANY = 4 * FEW
A, B, C = (node.node for node in NODES[:3])


def _crowd(count: int) -> list[Identity]:
    return [Identity(bytes([7, number // 256, number % 256]) + bytes(29)) for number in range(count)]


def _told(desk: Desk) -> list[int]:
    """The positions of the entries that everybody was told of by the last step."""
    effects = [e.message for e in desk.effects if isinstance(e, Tell) and isinstance(e.message, Entries)]
    return [read_link(item).entry.position for message in effects for item in message.items]


def _followed(peers: Peers, desk: Desk) -> Peers:
    """A node's list after the last step."""
    for news in desk.told(Peers):
        peers = updated(peers, news)
    return peers


def test_few_are_looked_at_whenever_one_speaks_and_many_when_there_is_time() -> None:
    few, many = Pacing(0.5), Pacing(0.5)
    assert all(few.due(0.0, FEW, news=False) for _ in range(3))
    assert many.due(0.0, 1000, news=True)
    assert not many.due(0.0, 1000, news=True)
    assert not many.due(999 * LOOK_S_A_NODE, 1000, news=False)
    assert many.due(1001 * LOOK_S_A_NODE, 1000, news=False), "there was news, and it waited long enough"
    assert not many.due(0.5, 1000, news=False), "nothing but time has passed"
    assert many.due(0.7, 1000, news=False), "a tick has passed"
    assert many.due(0.8, 0, news=True), "the clock is always heeded"
    assert not many.due(1.2, 100_000, news=True)
    assert many.due(1.3, 100_000, news=True), "nobody waits for longer than a tick"


def test_entries_wait_for_one_another_and_never_for_long() -> None:
    telling = Telling()
    assert telling.take(b"0", 0.0, FEW, waits=True) == (b"0",), "few are told at once"
    assert telling.take(b"1", 10.0, MANY, waits=True) == (b"1",), "nothing was told lately"
    assert telling.take(b"2", 10.0, MANY, waits=True) == ()
    assert telling.take(b"3", 10.0, MANY, waits=False) == (b"2", b"3"), "a plan does not wait"
    assert telling.take(b"4", 10.0, MANY, waits=True) == ()
    assert telling.due(10.0, MANY) == ()
    assert telling.due(10.0 + 2 * MANY * TELL_S_A_NODE, MANY) == (b"4",)
    assert telling.due(99.0, MANY) == ()
    for number in range(MOST_UNTOLD - 1):
        assert telling.take(b"x", 10.3, MANY, waits=True) == (), number
    assert len(telling.take(b"x", 10.3, MANY, waits=True)) == MOST_UNTOLD


def test_joins_of_many_are_told_in_few_frames_and_every_entry_once_in_order() -> None:
    desk = Desk(small_recipe(membership={**members(2), "max_nodes": MANY}))
    crowd, frames, told, peers = _crowd(MANY), 0, [], Peers(edition=0, peers=())
    for number, node in enumerate(crowd):
        desk.now += 0.001
        desk.arrive(node, address=f"h:{number + 1}")
        frames += len(desk.wanted(Tell))
        told += _told(desk)
        peers = _followed(peers, desk)
    assert frames < 3 * FEW, f"{frames} frames to everybody for {MANY} joins"
    desk.tick(2 * MANY * TELL_S_A_NODE)
    told += _told(desk)
    peers = _followed(peers, desk)
    assert told == list(range(1, desk.view.length)), "each once, in order"
    assert len(peers.peers) == MANY + 1, "the others' addresses come as late, and come"
    desk.check()


def test_a_heartbeat_is_answered_with_what_everybody_was_told() -> None:
    """Otherwise every heartbeat would ask for the entries that are about to be told."""
    desk = Desk(small_recipe(membership={**members(2), "max_nodes": MANY}))
    crowd = _crowd(MANY)
    desk.arrive(*crowd)
    desk.beat(crowd[0], at=5)
    waiting = len(_untold(desk))
    assert waiting > 0 and desk.sent(crowd[0], Beat)[0].length == desk.view.length - waiting
    desk.tick(2 * MANY * TELL_S_A_NODE)
    desk.beat(crowd[0], at=5)
    assert desk.sent(crowd[0], Beat)[0].length == desk.view.length


def test_a_plan_takes_the_joins_before_it_along() -> None:
    desk = Desk(small_recipe(membership={**members(MANY), "max_nodes": MANY}))
    crowd = _crowd(MANY)
    desk.arrive(*crowd)
    assert desk.view.plan is None
    assert _untold(desk)
    for node in crowd:
        desk.say(node, Heartbeat(at=0, length=1, peers=0, doing=""))
    desk.tick(0.5)
    bodies = [type(read_link(desk.entries[position]).entry.body) for position in _told(desk)]
    assert bodies[-1] is Plan and set(bodies[:-1]) <= {Joined}
    assert len(desk.view.planned) == MANY


def _untold(desk: Desk) -> list[bytes]:
    return desk.machine._telling.untold


def test_what_a_silent_crowd_costs_does_not_grow_with_it() -> None:
    """Heartbeats that say nothing new: the run is not looked at, everybody keeps its lease."""
    desk = Desk(small_recipe(membership={**members(2), "min_nodes": 9_000, "max_nodes": 9_000}))
    crowd = _crowd(MANY)
    desk.arrive(*crowd)
    desk.beat(*crowd)
    desk.tick(1.0)
    look = desk.machine.seats._looked(desk.now)
    for _ in range(3):
        desk.now += 0.1
        desk.beat(*crowd)
        assert desk.machine.seats._looked(desk.now) is look, "nothing was worked out again"
    desk.now += 5.9
    assert len(desk.machine.seats.live(desk.now)) == MANY
    desk.tick(0.2)
    assert desk.machine.seats.live(desk.now) == frozenset()
    desk.beat(crowd[3])
    assert desk.machine.seats.live(desk.now) == {crowd[3].node}, "one that is heard again is back"


def test_those_who_leave_many_are_seen_to_be_gone() -> None:
    desk = Desk(small_recipe(membership={**members(2), "min_nodes": 9_000, "max_nodes": 9_000}))
    crowd = _crowd(MANY)
    desk.arrive(*crowd)
    desk.beat(*crowd)
    desk.say(crowd[0], Goodbye(reason="night"))
    desk.step(Lost(crowd[1].node))
    desk.tick(2.5)
    assert desk.machine.seats.live(desk.now) == {node.node for node in crowd[2:]}
    assert crowd[1].node not in desk.machine.seats.ready(desk.now, desk.view)
    assert NODES[0].node not in desk.machine.seats.by_node
    assert [node for node, _ in desk.machine.seats.reachable(desk.now)] == sorted(n.node for n in crowd[2:])


def test_changes_of_a_list_are_taken_by_those_who_have_it() -> None:
    here = Peers(edition=5, peers=(PeerAddress(A, "h:1"), PeerAddress(B, "h:2")))
    news = Peers(edition=6, peers=(PeerAddress(B, "h:9"), PeerAddress(C, "h:3")), since=5, gone=(A,))
    after = updated(here, news)
    assert (after.edition, after.since, after.gone) == (6, 0, ())
    assert {peer.node: peer.address for peer in after.peers} == {B: "h:9", C: "h:3"}
    assert updated(Peers(edition=4, peers=()), news).edition == 4, "it is sent the whole list instead"
