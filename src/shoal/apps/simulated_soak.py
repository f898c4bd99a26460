"""A day and more under random kills, in virtual time: does anything grow, and is anything lost?

In flow hours and a seed; out flow rounds, kills and slopes. Invariant: coordinators and nodes are the product's own,
the referee looks at every entry and frame, and what grows with the log by design is told apart from what must not.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.apps.bench.slopes import MEGABYTE, Sample, growth_per_hour
from shoal.apps.progress import Bar
from shoal.coordinator.service import CoordinatorService
from shoal.node.service import NodeService
from shoal.runlog.view import RunView
from shoal.strategy.recipe import recipe_from
from shoal.worlds.simulated.chaos import Chaos
from shoal.worlds.simulated.demands import Place
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.loop import SimLoop, hush
from shoal.worlds.simulated.network import Link
from shoal.worlds.simulated.scenario import Machine, Scenario
from shoal.worlds.simulated.weighing import weigh

NO_END = 10**12
SAMPLE_S = 1800.0
SETTLE_S = 3600.0
"""In its first hour a run fills its stores up to what it keeps."""
STEPS, STEP_S = 3, 20.0
KILL_EVERY_S = 400.0
COORDINATORS = ("coordinator", "standby-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    """What came of it."""

    hours: float
    nodes: int
    kills: int
    takeovers: int
    rounds: int
    lost: int
    memory_growth_mb_per_hour: float
    """Of the host that grew most, without what the log itself takes."""
    disk_growth_mb_per_hour: float
    log_kb_per_round: float
    log_memory_kb_per_round: float
    """What every process remembers of a round: it is a function of the whole log."""
    cpu_s: float


def soak(hours: float, nodes: int, seed: int, say: Callable[[str], None]) -> Soaked:
    """Play it. Raises `Foul` the moment something is lost or differs."""
    hush()
    began = time.process_time()
    loop = SimLoop(seed, event_budget=NO_END)
    played = _Soak(loop, _scenario(hours, nodes, seed), say)
    loop.run(played.play())
    rounds = len(played.referee.rounds_sealed)
    return Soaked(
        hours=hours,
        nodes=nodes,
        kills=played.crashes,
        takeovers=played.referee.takeovers,
        rounds=rounds,
        lost=0,
        memory_growth_mb_per_hour=_worst(played.memory),
        disk_growth_mb_per_hour=_worst(played.disk),
        log_kb_per_round=_each(played.log, rounds),
        log_memory_kb_per_round=_each(played.log_memory, rounds),
        cpu_s=round(time.process_time() - began, 1),
    )


def _worst(samples: dict[str, list[Sample]]) -> float:
    return round(max(growth_per_hour(one, SETTLE_S) for one in samples.values()) / MEGABYTE, 4)


def _each(samples: dict[str, list[Sample]], rounds: int) -> float:
    return round(max(one[-1].value for one in samples.values()) / max(1, rounds) / 1000, 2)


class _Soak(Chaos):
    """Chaos for a long while, with a look at memories and disks now and then."""

    def __init__(self, loop: SimLoop, scenario: Scenario, say: Callable[[str], None]) -> None:
        super().__init__(loop, scenario)
        self.memory: dict[str, list[Sample]] = defaultdict(list)
        self.disk: dict[str, list[Sample]] = defaultdict(list)
        self.log: dict[str, list[Sample]] = defaultdict(list)
        self.log_memory: dict[str, list[Sample]] = defaultdict(list)
        self._say = say

    async def _trouble(self) -> None:
        looking = self.loop.create_task(self._look(), name="look")
        await super()._trouble()
        looking.cancel()

    async def _look(self) -> None:
        with Bar() as bar:
            while True:
                await asyncio.sleep(SAMPLE_S)
                self._sample_all()
                bar.at(self.loop.time() / 3600, self.scenario.chaos_s / 3600, "virtual hours")

    def _sample_all(self) -> None:
        gc.collect()
        for place in self.places.values():
            self._sample(place)
        hours = self.loop.time() / 3600
        rounds = len(self.referee.rounds_sealed)
        self._say(f"hour {hours:.1f}: {rounds} rounds, {self.crashes} kills")

    def _sample(self, place: Place) -> None:
        name, now = place.machine.name, self.loop.time()
        total, log = _disk_bytes(place.disk)
        # One level for all lives of a machine: what a life leaves behind on disk is what is looked for.
        self.disk[name].append(Sample(0, now, total - log))
        self.log[name].append(Sample(0, now, log))
        if place.host is not None and place.host.alive:
            seen: set[int] = set()
            of_log = sum(weigh(view, seen) for view in _views(place))
            self.log_memory[name].append(Sample(0, now, of_log))
            self.memory[name].append(Sample(0, now, weigh(place.service, seen)))


def _views(place: Place) -> list[RunView]:
    service = place.service
    if isinstance(service, NodeService):
        return [service.machine.view]
    if isinstance(service, CoordinatorService):
        return [run.machine.view for run in service.runs.values()] + service.views_of_copies()
    return []


def _disk_bytes(disk: SimDisk) -> tuple[int, int]:
    """All bytes, and those of them that are the log and the ledger, which has a page for every seal."""
    sizes = disk.sizes()
    log = sum(size for name, size in sizes.items() if name.endswith(".log") or name.startswith("kept-"))
    return sum(sizes.values()), log


def _scenario(hours: float, nodes: int, seed: int) -> Scenario:
    values: dict[str, Any] = {
        "name": "soak",
        "seed": seed,
        "model": {"kind": "mlp", "width": 8, "layers": 1},
        "data": {"source": "digits"},
        "inner": {"kind": "adamw", "lr": 0.01, "batch_size": 2},
        "strategy": {
            "preset": "local-sgd",
            "schedule": {"steps": STEPS},
            "seal": {"kind": "all-or-deadline", "deadline_s": 180.0},
        },
        "budget": {"rounds": 1_000_000},
        "membership": {
            "min_nodes": 1,
            "heartbeat_s": 15.0,
            "lease_s": 60.0,
            "reconnect_s": 20.0,
        },
        "storage": {"snapshot_every": 5, "keep_bytes": 0},
        "evaluation": {"every": 10, "batches": 1},
    }
    names = [f"n{number}" for number in range(nodes)]
    recipe = recipe_from(values)
    membership = recipe.membership.model_copy(update={"coordinators": COORDINATORS})  # Names, in simulation.
    return Scenario(
        seed=seed,
        torch=False,
        recipe=recipe.model_copy(update={"membership": membership}),
        coordinator=_machine(COORDINATORS[0]),
        nodes=tuple(map(_machine, names)),
        standbys=tuple(map(_machine, COORDINATORS[1:])),
        size=300,
        step_s=STEP_S,
        chaos_s=hours * 3600,
        loss=0.0,
        duplicate=0.0,
        reorder=0.0,
        corrupt=0.0,
        trouble_every_s=KILL_EVERY_S,
        point_chance=0.0,
        troubles=("coordinator", "crash", "crash", "leave"),
        ends="",
        stop_at_s=0.0,
        liars=(),
    )


def _machine(name: str) -> Machine:
    link = Link(latency_s=0.02, jitter_s=0.005, up_bytes_s=1e7, down_bytes_s=1e7)
    return Machine(name=name, link=link, speed=1.0, inbound=True, skew_s=0.0, rate=1.0)
