"""Who is taken to have left where members vote."""

from __future__ import annotations

from runlog.small_log import NODES, Clerk

from shoal.coordinator.absent import Absent
from shoal.strategy.recipe import Membership


def _clerk() -> Clerk:
    clerk = Clerk()
    clerk.found()
    clerk.join(*NODES[:3])
    return clerk


def test_members_that_are_silent_for_long_are_gone_and_others_are_not() -> None:
    absent, view = Absent(Membership(lease_s=5.0, coordinators=("a:1", "b:1"))), _clerk().view
    live = frozenset({NODES[0].node, NODES[1].node})
    assert absent.gone(view, live, 0.0) == []
    everybody = frozenset(node.node for node in NODES[:3])
    assert absent.gone(view, everybody, 10.0) == [], "it came back"
    assert absent.gone(view, live, 12.0) == [] == absent.gone(view, live, 26.0)
    assert [node for node, _ in absent.gone(view, live, 28.0)] == [NODES[2].node]


def test_nobody_is_gone_where_members_do_not_vote() -> None:
    absent, view = Absent(Membership(lease_s=5.0)), _clerk().view
    assert absent.gone(view, frozenset(), 0.0) == [] == absent.gone(view, frozenset(), 1e6)
