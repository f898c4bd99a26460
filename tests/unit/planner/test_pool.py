"""Machines that are lent to several runs, and forgotten when they are silent."""

from __future__ import annotations

import pytest

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.planner import pool as pools
from shoal.planner.matching import MATCHERS, Job, Worker
from shoal.planner.pool import FORGOTTEN_S, HELD_S, LAST, SOON, Pool

A, B = RunId("a" * 32), RunId("b" * 32)


def worker(number: int, **what: float) -> Worker:
    return Worker(node=NodeId(f"{number:040x}"), speed=float(number), **what)  # type: ignore[arg-type]


def test_the_better_paid_run_is_filled_first_and_the_rest_goes_to_the_other() -> None:
    pool, jobs = Pool(MATCHERS["stable"]), [Job(run=A, room=1, pay=2.0), Job(run=B, room=5, pay=1.0)]
    assert pool.offer(worker(1), jobs, 0.0)[0] == A
    assert pool.offer(worker(2), jobs, 0.5) == (None, SOON)
    assert pool.offer(worker(2), jobs, 1.0)[0] == A  # It is faster: the run would rather have it.
    assert pool.offer(worker(1), jobs, 1.0)[0] == B
    assert "its wish 1" in pool.offer(worker(2), jobs, 1.5)[1]


def test_who_is_silent_is_forgotten_and_makes_room() -> None:
    pool, jobs = Pool(MATCHERS["stable"]), [Job(run=A, room=1)]
    assert pool.offer(worker(2), jobs, 0.0)[0] == A
    assert pool.offer(worker(1), jobs, 2.0) == (None, "no run has room for it")
    assert pool.offer(worker(1), jobs, FORGOTTEN_S + 1)[0] == A
    pool.withdraw(worker(1).node)
    assert pool.workers == ()


def test_nobody_moves_between_equals() -> None:
    pool = Pool(MATCHERS["stable"])
    assert pool.offer(worker(1), [Job(run=B, room=5, pay=1.0)], 0.0)[0] == B
    both = [Job(run=A, room=5, pay=1.0), Job(run=B, room=5, pay=1.0)]
    assert pool.offer(worker(1), both, 1.0)[0] == B
    better = [Job(run=A, room=5, pay=1.5), Job(run=B, room=5, pay=1.0)]
    assert pool.offer(worker(1), better, 2.0)[0] == A


@pytest.mark.parametrize("matching", sorted(MATCHERS))
def test_who_works_for_a_run_that_ends_stays_until_its_state_is_saved(matching: str) -> None:
    pool, other = Pool(MATCHERS[matching]), Job(run=B, room=5, pay=9.0, priority=9, memory_bytes=0)
    assert pool.offer(worker(1), [Job(run=A, room=5)], 0.0)[0] == A
    ends = [Job(run=A, room=5, ending=True), other]
    for number in range(3):
        assert pool.offer(worker(1), ends, 1.0 + number) == (A, LAST)
    assert pool.offer(worker(2), ends, 4.0)[0] == B, "nobody new is given to it"
    assert pool.offer(worker(1), [other], 5.0)[0] == B


def test_a_coordinator_that_has_just_begun_lets_a_runs_members_stay_and_nobody_for_ever() -> None:
    pool, me = Pool(MATCHERS["stable"]), worker(1)
    jobs = [
        Job(run=A, room=5, ending=True, members=frozenset([me.node])),
        Job(run=B, room=5, pay=9.0),
    ]
    assert pool.offer(me, jobs, 0.0) == (A, LAST)
    assert pool.offer(worker(2), jobs, 1.0)[0] == B
    assert pool.offer(me, jobs, HELD_S) == (A, LAST)
    assert pool.offer(me, jobs, HELD_S + 2)[0] == B, "its last state may never come"


def test_nobody_works_for_less_than_it_asks_for() -> None:
    pool = Pool(MATCHERS["priority"])
    run, reason = pool.offer(worker(1, least_pay=2.0), [Job(run=A, room=1, pay=1.0)], 0.0)
    assert run is None and "works for no less than 2" in reason


def test_strangers_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MOST", 2)
    pool = Pool(MATCHERS["stable"])
    for number in (1, 2, 1):
        pool.offer(worker(number), [], 0.0)
    with pytest.raises(ShoalError, match="SH-POOL-01"):
        pool.offer(worker(3), [], 0.0)
    pool.offer(worker(3), [], FORGOTTEN_S + 1)
