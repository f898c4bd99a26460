"""Communication behind compute: how many inner steps ever wait for the network.

In flow a preset, a model's size and a step's duration; out flow, by preset, the share of steps that began the moment
the one before them ended. Invariant: services, codec and bytes are the product's own, on links with a rate and a
latency; only the training is a stand-in, which moves the parameters and takes the time that it is given.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from shoal.apps.bench import calm
from shoal.apps.flat import without_regions
from shoal.apps.progress import tracked
from shoal.base.ids import BlobId
from shoal.base.layout import Layout, make_layout
from shoal.data.assignment import Indices
from shoal.data.manifest import Manifest, Shard
from shoal.strategy.recipe import Recipe, parse_recipe
from shoal.training.trainer import StepResult
from shoal.worlds.simulated.network import Link

RATE_BYTES_S = 100e6 / 8
LATENCY_S = 0.080
"""From any machine to any other, one way."""
WAITED_SHARE = 0.1
"""A step waited if it began later than so much of a step after the last one ended."""
TENSORS = 48
NUMBERED = Shard(blob=BlobId(""), items=1 << 40)
"""Samples that are but numbers."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked for."""

    preset: str
    params: int
    step_s: float
    steps: int
    nodes: int
    seed: int
    settings: tuple[str, ...] = ()


class TimedTrainer:
    """Implements `Trainer`: moves every parameter a little, each trainer its own way, and remembers when."""

    batch_size = 1

    def __init__(self, layout: Layout, number: int) -> None:
        self.layout = layout
        self.ended: list[float] = []
        """When each step ended, in simulated seconds."""
        self._params = torch.zeros(layout.numel)
        random = torch.Generator().manual_seed(number)
        self._move = torch.randn(layout.numel, generator=random).mul_(1e-3)

    def params(self) -> torch.Tensor:
        return self._params

    def load(self, params: torch.Tensor) -> None:
        self._params.copy_(params)

    def step(self, indices: Indices, step_number: int) -> StepResult:
        self._params.add_(self._move)
        self.ended.append(asyncio.get_running_loop().time())
        return StepResult(loss=1.0, samples=len(indices), tokens=len(indices))

    def local_state(self) -> bytes:
        return b""

    def load_local_state(self, data: bytes) -> None:
        """It has none."""

    def evaluate(self, max_batches: int) -> float:
        return 1.0


def measure(loads: list[Load], say: Say) -> dict[str, Any]:
    """Every load on the same links. Raises SH-RECIPE-02 or -03 before anything runs, where a load cannot be had."""
    recipes = [_recipe(load) for load in loads]
    torch.set_num_threads(1)
    rows = []
    for load, recipe in tracked(list(zip(loads, recipes, strict=True)), "runs"):
        rows.append(_row(load, recipe))
        say(", ".join(f"{key} {value}" for key, value in rows[-1].items()))
    return {"rate_mbit_s": RATE_BYTES_S * 8 / 1e6, "latency_ms": LATENCY_S * 1000, "runs": rows}


def _row(load: Load, recipe: Recipe) -> dict[str, Any]:
    strategy = recipe.strategy
    trainers: list[TimedTrainer] = []
    each = load.params // TENSORS
    layout = make_layout([(f"t{i}", (each,)) for i in range(TENSORS)], strategy.schedule.fragments)

    def make_trainer() -> TimedTrainer:
        trainers.append(TimedTrainer(layout, len(trainers)))
        return trainers[-1]

    link = Link(latency_s=LATENCY_S / 2, jitter_s=0.0, up_bytes_s=RATE_BYTES_S, down_bytes_s=RATE_BYTES_S)
    fleet = calm.Fleet(
        recipe=recipe,
        manifest=Manifest(kind="tokens", dtype="uint8", train=(NUMBERED,), validation=(), context=1),
        make_trainer=make_trainer,
        computers=tuple(calm.Computer(name=f"n{i}", link=link) for i in range(load.nodes)),
        step_s=load.step_s,
        seed=load.seed,
    )
    played = calm.play(fleet, calm.Observer())
    gaps = [gap for trainer in trainers for gap in waits(trainer.ended, load.step_s)]
    update = played.view.path[-1].updates[0].claim.size_bytes
    return {
        "preset": load.preset,
        "tau_steps": strategy.schedule.overlap,
        "codec": strategy.codec.kind,
        "params": layout.numel,
        "nodes": load.nodes,
        "step_ms": round(load.step_s * 1000),
        "steps": len(gaps) + len(trainers),
        "update_bytes": update,
        "rounds": len(played.view.path),
        "never_waited": round(sum(gap <= WAITED_SHARE * load.step_s for gap in gaps) / len(gaps), 4),
        "utilisation": round(1 / (1 + sum(gaps) / len(gaps) / load.step_s), 4),
    }


def waits(ended: list[float], step_s: float) -> list[float]:
    """How long each step but the first waited before it began."""
    return [max(0.0, later - earlier - step_s) for earlier, later in itertools.pairwise(ended)]


def _recipe(load: Load) -> Recipe:
    values: dict[str, Any] = {
        "name": "overlap",
        "seed": load.seed,
        "model": {"kind": "own"},
        "data": {"source": "own", "items": NUMBERED.items},
        "inner": {"kind": "own", "batch_size": 1},
        "strategy": {"preset": load.preset},
        "budget": {"tokens": load.steps * load.nodes},
        "membership": {"min_nodes": load.nodes},
        "storage": {"archive": False, "keep_bytes": 0, "snapshot_every": 1000},
        "evaluation": {"every": 1_000_000_000},
    }
    recipe = parse_recipe(json.dumps(values), overrides=load.settings, environment={}, where="overlap")
    return without_regions(recipe, load.preset)


def table(result: dict[str, Any]) -> list[str]:
    """The result for people."""
    head = f"{'preset':18} {'tau':>4} {'codec':14} {'update MB':>10} {'never waited':>13} {'utilisation':>12}"
    lines = [f"links of {result['rate_mbit_s']:g} Mbit/s and {result['latency_ms']:g} ms", head]
    for row in result["runs"]:
        lines.append(
            f"{row['preset']:18} {row['tau_steps']:4} {row['codec']:14} {row['update_bytes'] / 1e6:10.2f} "
            f"{row['never_waited']:13.1%} {row['utilisation']:12.1%}"
        )
    return lines
