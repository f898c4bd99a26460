"""Machines that were lent to no run in particular, and which run each works for now.

In flow offers of nodes, again and again, and the runs that want some; out flows a matching. Invariant: an offer counts
until it has not been repeated for `FORGOTTEN_S`; no more than `MOST` are remembered, whoever makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.planner.matching import Job, Matcher, Matching, Worker

ASK_AGAIN_S = 15.0
"""How often a machine asks which run it works for."""
FORGOTTEN_S = 4 * ASK_AGAIN_S
MATCHED_S = 1.0
"""So long a matching stands: who comes meanwhile is told to ask again then."""
SOON = "it is about to be given a run"
HELD_S = 600.0
"""So long a run that ends may keep those it has."""
LAST = "its run is stopped, and its last state is being saved"
MOST = 10_000


class Pool:
    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._offers: dict[NodeId, tuple[Worker, float]] = {}
        self._now: Matching = Matching(run_of={})
        self._matched: tuple[float, tuple[Job, ...]] | None = None
        self._ending_since: dict[RunId, float] = {}

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(worker for worker, _ in self._offers.values())

    def offer(self, worker: Worker, jobs: Sequence[Job], now: float) -> tuple[RunId | None, str]:
        """A machine says again that it is there; the run that it works for, and why. Raises SH-POOL-01 when there are
        too many."""
        self.forget(now)
        if worker.node not in self._offers and len(self._offers) >= MOST:
            raise ShoalError(
                "SH-POOL-01",
                f"the pool has {MOST} machines already",
                "come again later, or join a run with its own ticket",
            )
        self._offers[worker.node] = (worker, now)
        found = self.match(jobs, now)
        reason = SOON if jobs else "no run wants anybody now"
        return found.run_of.get(worker.node), found.reasons.get(worker.node, reason)

    def withdraw(self, node: NodeId) -> None:
        self._offers.pop(node, None)

    def forget(self, now: float) -> None:
        self._offers = {
            node: (worker, at) for node, (worker, at) in self._offers.items() if now - at <= FORGOTTEN_S
        }

    def match(self, jobs: Sequence[Job], now: float) -> Matching:
        """With what is known now, or a moment ago: however many ask, it takes no more than so much time. Who works for
        a run goes on with it where all else is equal: it prefers that run to those that it does not name. Who works for
        one that ends stays until its last state is saved, since nobody else may have it; nobody new is given to it."""
        if self._matched and self._matched[1] == tuple(jobs) and now - self._matched[0] < MATCHED_S:
            return self._now
        self._matched = (now, tuple(jobs))
        lasting, held = [job for job in jobs if not job.ending], self._held(jobs, now)
        here, settled = {job.run for job in lasting}, []
        for worker, _ in self._offers.values():
            run = self._now.run_of.get(worker.node)
            stays = run is not None and run in here and not worker.prefers
            if worker.node not in held:
                settled.append(replace(worker, prefers=_by_pay(lasting, run)) if stays else worker)
        found = self._matcher(settled, lasting)
        reasons = {**found.reasons, **dict.fromkeys(held, LAST)}
        self._now = Matching(run_of={**found.run_of, **held}, reasons=reasons)
        return self._now

    def _held(self, jobs: Sequence[Job], now: float) -> dict[NodeId, RunId]:
        """Who works for a run that ends; also where another coordinator knew that, as its members tell."""
        ending = [job for job in jobs if job.ending]
        self._ending_since = {job.run: self._ending_since.get(job.run, now) for job in ending}
        return {
            node: job.run
            for job in ending
            if now - self._ending_since[job.run] <= HELD_S
            for node in self._offers
            if node in job.members or self._now.run_of.get(node) == job.run
        }


def _by_pay(jobs: Sequence[Job], run: RunId | None) -> tuple[RunId, ...]:
    """Runs that pay more than this one, and then this one."""
    pay = next(job.pay for job in jobs if job.run == run)
    better = sorted(
        (job for job in jobs if job.pay > pay), key=lambda job: (-job.pay, -job.priority, job.run)
    )
    return (*(job.run for job in better), *([run] if run else []))
