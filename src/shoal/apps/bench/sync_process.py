"""One process of `shoal bench sync`: the coordinator, or a node whose training costs nothing and ends on the stroke.

In flows a job as JSON; out flow JSON lines that say what happened when, by the machine's one clock. Invariant:
services, transport, codec, log and fold are the product's own; only the local steps are not, so that what is timed is
the sync.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from shoal.base.ids import NodeId, RunId
from shoal.base.layout import Layout, make_layout
from shoal.coordinator.founding import found_with
from shoal.coordinator.service import CoordinatorService
from shoal.data.assignment import Indices
from shoal.node import events as ev
from shoal.node.learner import Learner
from shoal.node.options import NodeOptions
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.replica.state import State, initial_state
from shoal.runlog.files import FileLogStore
from shoal.runlog.view import Step
from shoal.runlog.work import Planned
from shoal.strategy.recipe import Recipe, recipe_from
from shoal.training.trainer import StepResult
from shoal.wire.identity import Identity
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.host import RealHost
from shoal.worlds.real.loop import run

LEAST_WAIT_S = 0.5
"""A step ends at the first stroke that is at least so far away."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What this process is to do."""

    role: str
    home: str
    address: str
    params: int
    period_s: float
    """Between two strokes, at which everybody's local step ends."""
    recipe: dict[str, Any] = {}
    invitation: dict[str, str] = {}
    name: str = ""


def sync_recipe(nodes: int, preset: str) -> dict[str, Any]:
    """An algorithm with one step a round; who does not answer is waited for half a second."""
    strategy = {
        "preset": preset,
        "schedule": {"steps": 1},
        "planner": {"kind": "naive"},
        "seal": {"kind": "quorum", "quorum": 0.75, "grace_s": 0.5, "deadline_s": 30.0, "staleness": 0},
    }
    return {
        "name": "sync",
        "model": {"kind": "own"},
        "data": {"source": "own", "items": 1 << 20},
        "inner": {"kind": "own", "batch_size": 1},
        "strategy": strategy,
        "budget": {"rounds": 100_000},
        "membership": {"min_nodes": nodes, "lease_s": 4.0, "heartbeat_s": 1.0, "reconnect_s": 1.0},
        "storage": {"archive": False, "snapshot_every": 100_000, "push": "everybody"},
        "evaluation": {"every": 100_000},
    }


class StrokeTrainer:
    """Implements `training.trainer.Trainer`: a step adds noise of its own, and ends at the next stroke."""

    def __init__(self, params: int, period_s: float, seed: int) -> None:
        self.layout: Layout = make_layout([("all", (params,))], 1)
        draw = torch.Generator().manual_seed(seed)
        self._params = torch.zeros(params)
        self._noise = 1e-3 * torch.randn(params, generator=draw)
        self._period_s = period_s

    def params(self) -> torch.Tensor:
        return self._params

    def load(self, params: torch.Tensor) -> None:
        self._params.copy_(params)

    def step(self, indices: Indices, step_number: int) -> StepResult:
        self._params += self._noise
        now = time.monotonic() + LEAST_WAIT_S
        time.sleep(LEAST_WAIT_S + self._period_s - now % self._period_s)
        return StepResult(loss=1.0, samples=len(indices), tokens=len(indices))

    def local_state(self) -> bytes:
        return b""

    def load_local_state(self, data: bytes) -> None:
        """There is none."""

    def evaluate(self, max_batches: int) -> float:
        return 1.0


class TimedNode(NodeService):
    """A node that says when it does what."""

    async def _make_claim(self, planned: Planned, learner: Learner) -> ev.Outgoing:
        _say("stepped", planned.round)
        outgoing = await super()._make_claim(planned, learner)
        _say("claimed", planned.round)
        return outgoing

    async def _publish(self, work: ev.Publish) -> None:
        await super()._publish(work)
        _say("pushed", work.outgoing.claim.round)

    async def _fold(self, work: ev.Fold) -> None:
        _say("sealed", work.step.round)
        await super()._fold(work)

    def _fold_now(self, step: Step) -> State | None:
        _say("fetched", step.round)
        state = super()._fold_now(step)
        _say("folded", step.round)
        return state

    async def _take_in(
        self, at: int, jobs: Sequence[Callable[[], object]], before: asyncio.Task[None] | None
    ) -> None:
        await super()._take_in(at, jobs, before)
        step = self.machine.view.step_at(at)
        if step is not None:
            _say("adopted", step.round)


def _say(what: str, round_number: int) -> None:
    print(json.dumps({"what": what, "round": round_number, "at": time.monotonic()}), flush=True)


async def _coordinate(job: Job) -> None:
    disk, identity = FileDisk(Path(job.home)), Identity.generate()
    store = FileLogStore(disk, lambda point: None)
    recipe = recipe_from(job.recipe)

    def first(made: Recipe, _: Any) -> State:
        layout = make_layout([("all", (job.params,))], 1)
        return initial_state(layout, torch.zeros(job.params), made.strategy.fold_rules().slots)

    async with RealHost(
        identity, disk, bind=job.address, control_port=0, peer_port=0, advertise=job.address
    ) as host:
        service = CoordinatorService(host, identity, store)
        founded = found_with(service, recipe, first=first)
        serving = asyncio.create_task(service.serve(), name="serve")
        await service.ready.wait()
        told = {
            "coordinator": identity.node,
            "address": service.address,
            "run": founded.run,
            "token": founded.token,
        }
        print(json.dumps(told), flush=True)
        await serving


async def _take_part(job: Job) -> None:
    identity, told = Identity.generate(), job.invitation
    async with RealHost(
        identity, FileDisk(Path(job.home)), bind=job.address, peer_port=0, advertise=job.address
    ) as host:
        invitation = Invitation(
            coordinator=NodeId(told["coordinator"]),
            addresses=(told["address"],),
            run=RunId(told["run"]),
            token=told["token"],
            name=job.name,
        )
        seed = sum(job.name.encode())
        node = TimedNode(
            host,
            identity,
            invitation,
            lambda *_: StrokeTrainer(job.params, job.period_s, seed),
            NodeOptions(),
        )
        await node.run()


def main() -> None:
    """Carry out the job in the first argument."""
    torch.set_num_threads(1)
    job = msgspec.json.decode(sys.argv[1], type=Job)
    run(_coordinate(job) if job.role == "coordinator" else _take_part(job))


if __name__ == "__main__":
    main()
