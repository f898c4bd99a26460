"""Who waits for whom: machines of very different speeds, under one seal rule after another.

In flow a number of nodes and a seed; out flow, by rule, how many updates were accepted and how long the run took to
reach a loss. Invariant: fleet, model, data and inner optimiser are the same for every rule, the services are the
product's own, and time is the simulated fleet's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from shoal.apps.bench import calm
from shoal.apps.bench.converge.corpus import read_corpus
from shoal.apps.progress import tracked
from shoal.base.ids import NodeId
from shoal.replica.state import State
from shoal.runlog.entries import Claim, Entry, Plan, Seal
from shoal.strategy.recipe import Recipe, parse_recipe
from shoal.training.spec import AdamWSpec
from shoal.training.trainer import TorchTrainer
from shoal.wire.signed import parse

SLOWEST = 100.0
"""How many times as long a step takes the slowest node as the fastest."""
BATCH, STEPS, STEP_S = 4, 30, 0.1
TARGET = 2.4
"""The validation loss to reach."""
MOST_S = 15_000.0
"""Simulated seconds after which a rule has failed to."""
JUDGED = (64, 12)
"""Samples at once, and how often, to tell the loss of a state."""
Say = Callable[[str], None]


def _waiting(deadline_s: float) -> dict[str, Any]:
    return {
        "preset": "local-sgd",
        "schedule": {"steps": STEPS},
        "seal": {"kind": "all-or-deadline", "deadline_s": deadline_s},
    }


def _arriving(**settings: Any) -> dict[str, Any]:
    return {
        "preset": "async",
        "schedule": {"steps": STEPS},
        "seal": {"kind": "arrivals", "min_interval_s": 1.0, **settings},
    }


DEFAULT, ADAPTIVE = "all-or-deadline, 60 s", "arrivals, adaptive"
RULES: dict[str, dict[str, Any]] = {
    # Long enough for the slowest.
    "all-or-deadline, 600 s": _waiting(600.0),
    DEFAULT: _waiting(60.0),
    # So short that most machines never count: quick for the few that do.
    "all-or-deadline, 10 s": _waiting(10.0),
    "arrivals, bound 8": _arriving(adaptive=False, staleness=8),
    "arrivals, bound 50": _arriving(adaptive=False, staleness=50),
    ADAPTIVE: _arriving(adaptive=True),
}


@dataclass(slots=True)
class Course(calm.Observer):
    """What became of the work that was given out, and when the target was reached."""

    loss_of: Callable[[torch.Tensor], float]
    target: float
    given: int = 0
    accepted: int = 0
    seals: int = 0
    heard: set[NodeId] = field(default_factory=set)
    """Nodes of which at least one update was accepted."""
    loss: float = float("inf")
    reached_s: float | None = None
    _open: dict[tuple[NodeId, int], int] = field(default_factory=dict)
    """The last round in which it counts, by node and plan."""

    @property
    def lost(self) -> int:
        """Work that was neither accepted nor is still out: its update came too late, or was given up."""
        return self.given - self.accepted - len(self._open)

    @property
    def accepted_share(self) -> float:
        return self.accepted / max(1, self.accepted + self.lost)

    def appended(self, entry: Entry) -> None:
        match entry.body:
            case Plan() as plan:
                self.given += len(plan.members)
                for item in plan.members:
                    self._open[item.node, entry.position] = plan.round + item.staleness
            case Seal() as seal:
                self._sealed(seal)

    def _sealed(self, seal: Seal) -> None:
        self.seals += 1
        claims = [parse(item.claim.payload, Claim) for item in seal.accepted]
        answered = {claim.node: claim.plan for claim in claims if claim is not None}
        self.accepted += len(answered)
        self.heard |= answered.keys()
        self._open = {
            (node, plan): last
            for (node, plan), last in self._open.items()
            if last > seal.round and plan > answered.get(node, -1)
        }

    def reached(self, now: float, state: State) -> str:
        self.loss = self.loss_of(state.params)
        if self.loss <= self.target:
            self.reached_s = now
            return "the target is reached"
        return "it takes too long" if now > MOST_S else ""


def measure(nodes: int, seed: int, say: Say, target: float = TARGET) -> dict[str, Any]:
    """Every rule on the same fleet."""
    torch.set_num_threads(1)
    rows = {}
    for name, strategy in tracked(RULES.items(), "rules"):
        rows[name] = _row(_recipe(strategy, nodes, seed), target)
        say(f"{name:24} " + ", ".join(f"{key} {value}" for key, value in rows[name].items()))
    adaptive = rows[ADAPTIVE]
    gains = {name: _gain(row, adaptive) for name, row in rows.items() if name != ADAPTIVE}
    return {
        "nodes": nodes,
        "seed": seed,
        "slowest": SLOWEST,
        "target_loss": target,
        "rules": rows,
        "adaptive_accepted_share": adaptive["accepted_share"],
        "adaptive_gain": gains[DEFAULT],
        "adaptive_gains": gains,
    }


def _gain(row: dict[str, Any], adaptive: dict[str, Any]) -> float | None:
    """How many times as long a rule takes as the adaptive one; None if one of them never arrives."""
    seconds, others = row["seconds_to_target"], adaptive["seconds_to_target"]
    return round(seconds / others, 2) if seconds and others else None


def _row(recipe: Recipe, target: float) -> dict[str, Any]:
    nodes, corpus = recipe.membership.min_nodes, read_corpus(recipe.data)

    def make_trainer(batch: int = BATCH) -> TorchTrainer:
        inner = AdamWSpec(lr=0.003, batch_size=batch, warmup_steps=20)
        device = torch.device("cpu")
        return TorchTrainer(recipe.model, inner, corpus.manifest, corpus.dataset, recipe.seed, device)

    size, batches = JUDGED
    judge = make_trainer(size)

    def loss_of(params: torch.Tensor) -> float:
        judge.load(params)
        return judge.evaluate(batches)

    course = Course(loss_of, target)
    fleet = calm.Fleet(
        recipe=recipe,
        manifest=corpus.manifest,
        make_trainer=make_trainer,
        computers=tuple(
            calm.Computer(name=f"n{i}", speed=SLOWEST ** (-i / max(1, nodes - 1))) for i in range(nodes)
        ),
        step_s=STEP_S,
        seed=recipe.seed,
    )
    calm.play(fleet, course)
    return {
        "accepted_share": round(course.accepted_share, 4),
        "accepted": course.accepted,
        "lost": course.lost,
        "nodes_heard": len(course.heard),
        "seals": course.seals,
        "seconds_to_target": None if course.reached_s is None else round(course.reached_s, 1),
        "loss": round(course.loss, 4),
    }


def _recipe(strategy: dict[str, Any], nodes: int, seed: int) -> Recipe:
    values: dict[str, Any] = {
        "name": "staleness",
        "seed": seed,
        "model": {"kind": "gpt", "layers": 1, "width": 32, "heads": 2, "mlp": "gelu"},
        "data": {"source": "stdlib", "context": 32, "max_bytes": 2_000_000},
        "inner": {"kind": "own", "batch_size": BATCH},
        "strategy": strategy,
        "budget": {"seconds": 10 * MOST_S},
        "membership": {"min_nodes": nodes},
        "storage": {"archive": False, "keep_bytes": 0},
        "evaluation": {"every": 1_000_000_000},
    }
    return parse_recipe(json.dumps(values), environment={}, where="staleness")


def table(result: dict[str, Any]) -> list[str]:
    """The result for people."""
    head = f"{'accepted':>10} {'lost':>6} {'nodes heard':>12} {'seals':>6} {'s to target':>12} {'gain':>6}"
    lines = [
        f"loss {result['target_loss']:g}, {result['nodes']} nodes of 1x to {SLOWEST:g}x",
        f"{'':24} {head}",
    ]
    for name, row in result["rules"].items():
        seconds, gain = row["seconds_to_target"] or "never", result["adaptive_gains"].get(name, "")
        lines.append(
            f"{name:24} {row['accepted_share']:10.1%} {row['lost']:6} {row['nodes_heard']:12} {row['seals']:6} "
            f"{seconds:>12} {gain or '':>6}"
        )
    return lines
