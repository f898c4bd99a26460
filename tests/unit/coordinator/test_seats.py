from runlog.small_log import NODES, Clerk, founded, small_recipe

from shoal.coordinator.seats import LAG_ALLOWED, Seats
from shoal.wire.messages import Heartbeat

A, B, C = (node.node for node in NODES[:3])


def _seats() -> Seats:
    return Seats(small_recipe().membership)  # lease 6 s, reconnect 2 s


def _beat(at: int, *, paused: bool = False) -> Heartbeat:
    return Heartbeat(at=at, length=1, peers=0, doing="", paused=paused)


def test_a_lease_lasts_until_it_is_not_renewed() -> None:
    seats = _seats()
    seats.arrived(A, "a", "h:1", 0.0)
    assert seats.live(5.9) == {A} and seats.live(6.0) == frozenset()
    assert seats.heard(A, 5.0) and seats.live(10.9) == {A}
    assert not seats.heard(B, 5.0)


def test_a_broken_connection_shortens_the_lease_and_never_lengthens_it() -> None:
    seats = _seats()
    seats.arrived(A, "a", "h:1", 0.0)
    seats.lost(A, 1.0)
    assert seats.live(2.9) == {A} and seats.live(3.0) == frozenset()
    assert not seats.heard(A, 1.5), "its channel is gone"
    seats.arrived(B, "b", "h:1", 0.0)
    seats.lost(B, 5.5)
    assert B not in seats.live(6.0)
    seats.lost(C, 1.0)


def test_coming_back_keeps_how_far_it_had_come() -> None:
    seats = _seats()
    seats.arrived(A, "a", "h:1", 0.0)
    seats.beat(A, _beat(7))
    seats.lost(A, 1.0)
    seats.arrived(A, "a", "h:2", 2.0)
    assert seats.by_node[A].at == 7 and seats.by_node[A].connected
    seats.reached(A, 5)
    assert seats.by_node[A].at == 7
    seats.left(A)
    seats.left(A)
    assert seats.by_node == {}


def test_the_ready_have_the_current_state_or_are_a_few_folds_away() -> None:
    a, b = NODES[:2]
    clerk = Clerk()
    clerk.found()
    clerk.join(a, b)
    seals = []
    for _ in range(LAG_ALLOWED + 2):
        clerk.plan(a, b)
        seals.append(clerk.seal(a, b))
    seats = _seats()
    recent = [(at, True) for at in seals[-LAG_ALLOWED:]]
    for at, ready in [*recent, (seals[1], False), (seals[0], False), (0, False), (-1, False), (9999, False)]:
        seats.arrived(A, "a", "h:1", 0.0)
        seats.beat(A, _beat(at))
        assert seats.ready(1.0, clerk.view) == ([A] if ready else []), at
    seats.beat(A, _beat(seals[-1]))
    assert seats.ready(6.0, clerk.view) == []
    seats.lost(A, 0.5)
    assert seats.ready(0.6, clerk.view) == []


def test_expected_members_have_one_lease_to_come_back() -> None:
    seats = _seats()
    seats.expect(A, 10.0)
    assert seats.live(15.9) == {A} and seats.live(16.0) == frozenset()
    assert not seats.heard(A, 11.0)


def test_the_reachable_are_live_connected_and_serve_blobs() -> None:
    seats = _seats()
    seats.arrived(B, "b", "h:2", 0.0)
    seats.arrived(A, "a", "h:1", 0.0)
    seats.arrived(C, "c", "", 0.0)
    assert seats.reachable(1.0) == ((A, "h:1"), (B, "h:2"))
    seats.lost(A, 1.0)
    assert seats.reachable(1.0) == ((B, "h:2"),), "its lease runs on, but its line is broken"
    assert seats.reachable(6.0) == ()


def test_the_paused_are_live_but_not_awaited() -> None:
    seats = _seats()
    for node in (A, B):
        seats.arrived(node, "", "h:1", 0.0)
        seats.beat(node, _beat(0))
    seats.beat(A, _beat(0, paused=True))
    view = founded()
    assert seats.live(1.0) == {A, B} and seats.awaited(1.0) == {B} and seats.ready(1.0, view) == [B]
    assert [node for node, _ in seats.reachable(1.0)] == [A, B], "it still serves"
    seats.beat(A, _beat(0))
    assert seats.awaited(1.0) == {A, B} and seats.ready(1.0, view) == [A, B]
    assert seats.awaited(6.0) == frozenset()
