"""Several runs share a pool of nodes: who works for which.

In flow nodes with what they can do and want, and runs with what they need and want; out flows a matching, each pair
with its reason. Invariant: pure; no node is given twice, no run more than it has room for, and nobody to a run whose
needs it does not meet.

Three ways, one interface: `capability` fills the most demanding runs first with the nodes that fit them best;
`priority` fills runs in the order of their priorities; `stable` is Gale and Shapley's: no node and run would both
rather have each other than what they got. To add one: a function like these and one line in `MATCHERS`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.base.ids import NodeId, RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    node: NodeId
    speed: float
    """Samples a second, of whatever all are measured with."""
    memory_bytes: int = 0
    up_bytes_s: float = 0.0
    health: float = 1.0
    least_pay: float = 0.0
    """For a unit of work; it works for no less."""
    prefers: tuple[RunId, ...] = ()
    """Runs in the order in which it would rather work for them; those it does not name come after, by their pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    run: RunId
    room: int
    """How many nodes it wants at most."""
    priority: int = 0
    memory_bytes: int = 0
    """What a node needs at least."""
    up_bytes_s: float = 0.0
    pay: float = 0.0
    """For a unit of work."""
    ending: bool = False
    """It is stopped, and needs those it has until its last state is saved."""
    members: frozenset[NodeId] = frozenset()
    """Who works for it now, where it is ending."""

    def lacks(self, worker: Worker) -> str:
        """Why a node cannot work for it; "" if it can."""
        if worker.memory_bytes < self.memory_bytes:
            return f"needs {self.memory_bytes >> 20} MiB, has {worker.memory_bytes >> 20}"
        if worker.up_bytes_s < self.up_bytes_s:
            need, has = 8e-6 * self.up_bytes_s, 8e-6 * worker.up_bytes_s
            return f"needs {need:.1f} Mbit/s up, has {has:.1f}"
        if worker.least_pay > self.pay:
            return f"pays {self.pay:g}, and it works for no less than {worker.least_pay:g}"
        return ""

    @property
    def demand(self) -> tuple[int, float]:
        return (self.memory_bytes, self.up_bytes_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    run_of: Mapping[NodeId, RunId]
    reasons: Mapping[NodeId, str] = field(default_factory=dict)
    """Why each node works for its run, or for none."""


Matcher = Callable[[Sequence[Worker], Sequence[Job]], Matching]


def by_capability(workers: Sequence[Worker], jobs: Sequence[Job]) -> Matching:
    """The most demanding run first, each with the ablest of those who are left and fit."""
    order = sorted(jobs, key=lambda job: (*(-part for part in job.demand), job.run))
    return _filled(workers, order, "the most demanding run that it fits")


def by_priority(workers: Sequence[Worker], jobs: Sequence[Job]) -> Matching:
    """The run of the highest priority first."""
    order = sorted(jobs, key=lambda job: (-job.priority, job.run))
    return _filled(workers, order, "the run of the highest priority that it fits")


def _filled(workers: Sequence[Worker], order: Sequence[Job], why: str) -> Matching:
    run_of: dict[NodeId, RunId] = {}
    reasons: dict[NodeId, str] = {}
    ranked = sorted(workers, key=_rank)
    for job in order:
        able = [worker for worker in ranked if worker.node not in run_of and not job.lacks(worker)]
        for worker in able[: job.room]:
            run_of[worker.node] = job.run
            reasons[worker.node] = f"{why}, with {worker.speed:g} samples a second"
    return Matching(run_of=run_of, reasons={**_unmatched(workers, order, run_of), **reasons})


def stable(workers: Sequence[Worker], jobs: Sequence[Job]) -> Matching:
    """Nodes propose to runs in the order of their wishes; a run that has no room keeps those it ranks highest."""
    by_run = {job.run: job for job in jobs}
    wishes = {worker.node: _wishes(worker, jobs) for worker in workers}
    by_node = {worker.node: worker for worker in workers}
    kept: dict[RunId, list[Worker]] = {run: [] for run in by_run}
    free = [worker.node for worker in sorted(workers, key=_rank, reverse=True)]
    while free:
        node = free.pop()
        if not wishes[node]:
            continue
        run = wishes[node].pop(0)
        insort(kept[run], by_node[node], key=_rank)
        if len(kept[run]) > by_run[run].room:
            free.append(kept[run].pop().node)
    run_of = {worker.node: run for run, group in sorted(kept.items()) for worker in group}
    reasons = {
        node: f"its wish {_wishes(by_node[node], jobs).index(run) + 1}; every run that it would rather work for has "
        "as many that it ranks higher as it has room for"
        for node, run in run_of.items()
    }
    return Matching(run_of=run_of, reasons={**_unmatched(workers, jobs, run_of), **reasons})


def _rank(worker: Worker) -> tuple[float, NodeId]:
    """What runs would rather have first: speed that can be relied on."""
    return (-worker.speed * worker.health, worker.node)


def _wishes(worker: Worker, jobs: Sequence[Job]) -> list[RunId]:
    named = {run: place for place, run in enumerate(worker.prefers)}
    fit = [job for job in jobs if not job.lacks(worker) and job.room > 0]
    fit.sort(key=lambda job: (named.get(job.run, len(named)), -job.pay, -job.priority, job.run))
    return [job.run for job in fit]


def _unmatched(
    workers: Sequence[Worker], jobs: Sequence[Job], run_of: Mapping[NodeId, RunId]
) -> dict[NodeId, str]:
    found = {}
    for worker in workers:
        if worker.node not in run_of:
            lacks = [job.lacks(worker) for job in jobs]
            short = bool(jobs) and all(lacks)
            found[worker.node] = f"fits no run: {lacks[0]}" if short else "no run has room for it"
    return found


MATCHERS: dict[str, Matcher] = {"capability": by_capability, "priority": by_priority, "stable": stable}
