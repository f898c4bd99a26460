"""Three matchers, one contract."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.ids import NodeId, RunId
from shoal.planner.matching import MATCHERS, Job, Worker

RUNS = [RunId(f"run-{number}") for number in range(4)]
workers = st.lists(
    st.builds(
        Worker,
        node=st.integers(0, 10**6).map(lambda n: NodeId(f"{n:064x}")),
        speed=st.integers(1, 50).map(float),
        memory_bytes=st.integers(0, 4),
        up_bytes_s=st.integers(0, 4).map(float),
        health=st.sampled_from([0.5, 1.0]),
        prefers=st.permutations(RUNS).map(lambda runs: tuple(runs[:2])),
    ),
    max_size=12,
    unique_by=lambda worker: worker.node,
)
jobs = st.lists(
    st.builds(
        Job,
        run=st.sampled_from(RUNS),
        room=st.integers(0, 4),
        priority=st.integers(0, 3),
        memory_bytes=st.integers(0, 4),
        up_bytes_s=st.integers(0, 4).map(float),
        pay=st.integers(0, 3).map(float),
    ),
    max_size=4,
    unique_by=lambda job: job.run,
)


@pytest.mark.parametrize("name", sorted(MATCHERS))
@given(workers, jobs)
def test_needs_and_room_are_kept_and_everybody_is_told_why(
    name: str, pool: list[Worker], wanted: list[Job]
) -> None:
    found = MATCHERS[name](pool, wanted)
    by_run, by_node = {job.run: job for job in wanted}, {worker.node: worker for worker in pool}
    for node, run in found.run_of.items():
        assert not by_run[run].lacks(by_node[node])
    for job in wanted:
        assert list(found.run_of.values()).count(job.run) <= job.room
    assert set(found.reasons) == set(by_node)
    # Nobody stands idle whom a run with room could use.
    for worker in pool:
        if worker.node not in found.run_of:
            for job in wanted:
                assert job.lacks(worker) or list(found.run_of.values()).count(job.run) == job.room


@given(workers, jobs)
def test_no_node_and_run_would_both_rather_have_each_other(pool: list[Worker], wanted: list[Job]) -> None:
    found = MATCHERS["stable"](pool, wanted)
    rank = {worker.node: (-worker.speed * worker.health, worker.node) for worker in pool}

    def wish(worker: Worker, job: Job) -> tuple[object, ...]:
        named = list(worker.prefers)
        place = named.index(job.run) if job.run in named else len(named)
        return (place, -job.pay, -job.priority, job.run)

    by_run = {job.run: job for job in wanted}
    for worker in pool:
        for job in wanted:
            mine = found.run_of.get(worker.node)
            if job.lacks(worker) or job.room == 0 or mine == job.run:
                continue
            rather = mine is None or wish(worker, job) < wish(worker, by_run[mine])
            theirs = [node for node, run in found.run_of.items() if run == job.run]
            wanted_there = len(theirs) < job.room or any(rank[worker.node] < rank[node] for node in theirs)
            assert not (rather and wanted_there)


def test_priority_fills_the_more_important_run_first() -> None:
    pool = [Worker(node=NodeId(str(n)), speed=float(n)) for n in range(1, 5)]
    wanted = [Job(run=RUNS[0], room=4), Job(run=RUNS[1], room=2, priority=5)]
    found = MATCHERS["priority"](pool, wanted)
    assert {node for node, run in found.run_of.items() if run == RUNS[1]} == {"3", "4"}


def test_capability_keeps_the_able_for_the_demanding() -> None:
    pool = [Worker(node=NodeId("big"), speed=1, memory_bytes=8), Worker(node=NodeId("small"), speed=9)]
    wanted = [Job(run=RUNS[0], room=1, priority=9), Job(run=RUNS[1], room=1, memory_bytes=8)]
    assert MATCHERS["capability"](pool, wanted).run_of == {"big": RUNS[1], "small": RUNS[0]}
