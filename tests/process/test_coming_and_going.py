"""Nodes die, hang, leave, return and come late; the coordinator dies and hangs: training goes on.

Leases are short here: nobody waits for a node longer than one deadline.
"""

from __future__ import annotations

import signal

import pytest

from shoal.runlog.chain import Link
from shoal.runlog.entries import Joined, Left, Plan, Seal

from .fleet import TINY, Fleet, accepted_nodes
from .referee import check_log, check_settled, end_run, kept_claims, stored_log

DEADLINE_S = TINY["strategy"]["seal"]["deadline_s"]
NAMES = ("ada", "ben", "cleo", "dan")


@pytest.fixture(scope="module")
def four(fleet: Fleet) -> Fleet:
    fleet.serve({**TINY, "membership": {**TINY["membership"], "min_nodes": 4}})
    for name in NAMES:
        fleet.join(name)
    for name in NAMES:
        fleet.contributes(name)
    return fleet


def _seals(links: list[Link]) -> list[Link]:
    return [link for link in links if isinstance(link.entry.body, Seal)]


def _check_no_pause(links: list[Link], without: str) -> None:
    """From plan to seal no round takes longer than one deadline, and at least one goes on without this node."""
    opened = 0
    for link in links:
        if isinstance(link.entry.body, Plan):
            opened = link.entry.time_ms
        if isinstance(link.entry.body, Seal) and opened:
            # One tick of the coordinator's clock may pass before it looks.
            assert link.entry.time_ms - opened <= (DEADLINE_S + 1.0) * 1000
    assert any(without not in accepted_nodes(link) for link in _seals(links))


def test_one_of_four_dies_and_the_next_round_seals_within_a_deadline(four: Fleet) -> None:
    dan = four.node_id("dan")
    four.nodes["dan"].kill()
    position = four.length() - 1

    four.seals_after(position, count=3)

    _check_no_pause(four.links(position), without=dan)
    four.join("dan")
    four.contributes("dan", after=four.length())


def test_a_node_that_hangs_is_not_waited_for_and_catches_up(four: Fleet) -> None:
    four.nodes["dan"].kill()
    hanging = four.join("dan", failpoint="node.before-claim:3:STOP")
    four.until(lambda: hanging.stopped, 40.0, "dan to stop")
    dan, position = four.node_id("dan"), four.length() - 1

    four.seals_after(position, count=3)

    _check_no_pause(four.links(position), without=dan)
    hanging.signal(signal.SIGCONT)
    four.contributes("dan", after=four.length())


def test_a_node_that_leaves_is_logged_and_may_return(four: Fleet) -> None:
    ben, position = four.node_id("ben"), four.length() - 1
    four.nodes["ben"].signal(signal.SIGTERM)
    assert four.nodes["ben"].ended() == 0
    assert "ended: the volunteer left" in four.nodes["ben"].out.read_text()

    def bodies() -> list[object]:
        return [link.entry.body for link in four.links(position)]

    left = [body for body in bodies() if isinstance(body, Left)]
    assert [(body.node, body.reason) for body in left] == [(ben, "the volunteer left")]
    four.join("ben")
    four.contributes("ben", after=four.length())
    assert [body.node for body in bodies() if isinstance(body, Joined)] == [ben]


def test_a_late_joiner_contributes(four: Fleet) -> None:
    four.join("late")
    four.contributes("late", after=four.length())
    four.nodes["late"].signal(signal.SIGTERM)
    assert four.nodes["late"].ended() == 0


def test_a_coordinator_that_hangs_goes_on_where_it_was(four: Fleet) -> None:
    assert four.coordinator is not None
    four.coordinator.kill()
    hanging = four.serve(failpoint="coordinator.after-seal:4:STOP")
    four.until(lambda: hanging.stopped, 40.0, "the coordinator to stop")
    assert all(four.nodes[name].alive for name in NAMES)
    hanging.signal(signal.SIGCONT)
    for name in NAMES:
        four.contributes(name, after=four.length())


def test_nodes_outlive_a_killed_coordinator_and_nothing_acknowledged_is_lost(four: Fleet) -> None:
    assert four.coordinator is not None
    four.coordinator.kill()
    promised, known = kept_claims(four), [link.hash for link in stored_log(four)]
    four.serve()
    for name in NAMES:
        assert four.nodes[name].alive, four.logs()
        four.contributes(name, after=len(known))
    links = four.links()
    assert [link.hash for link in links[: len(known)]] == known
    check_settled(links, promised)
    check_log(links)


def test_the_whole_of_it_verifies_and_replays(four: Fleet) -> None:
    end_run(four)
