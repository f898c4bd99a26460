"""What a round costs a node, through digests and without, as the fleet grows.

In flow a model's size and numbers of nodes; out flow, for each, the bytes that a node sends and receives in a round and
the processor seconds that it folds. Invariant: services, codecs, log and fold are the product's own, and every byte is
counted, control traffic too; only the training is a stand-in. Without digests, fleets that would fill this machine's
memory are not played but reckoned, at least so much, and the row says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from shoal.apps.bench import calm
from shoal.apps.bench.overlapping import NUMBERED, TimedTrainer
from shoal.apps.progress import tracked
from shoal.base.layout import make_layout
from shoal.data.manifest import Manifest
from shoal.runlog.entries import Entry, Plan
from shoal.strategy.recipe import Recipe, parse_recipe

FIRST_ROUND, ROUNDS = 1, 2
"""Those after the first state is everywhere, and before the run ends."""
TENSORS = 16
MOST_PLAIN = 16
"""The largest fleet that is played without digests: everybody there has everybody's updates."""
FOLDS = ("_fold", "fold_shards", "_fold_now")
"""The jobs in which a node folds: its shards, the digests of all, and every update."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked for."""

    params: int
    nodes: tuple[int, ...]
    folders: int
    seed: int
    settings: tuple[str, ...] = ()


@dataclass(slots=True)
class Window(calm.Observer):
    """Counts from the plan of one round to the plan of another."""

    moved: calm.Moved = field(default_factory=calm.Moved)
    counts: list[tuple[Counter[str], Counter[str], float]] = field(default_factory=list)

    def began(self, moved: calm.Moved) -> None:
        self.moved = moved

    def appended(self, entry: Entry) -> None:
        body = entry.body
        if isinstance(body, Plan) and body.round in (FIRST_ROUND, FIRST_ROUND + ROUNDS):
            folding = sum(seconds for (_, job), seconds in self.moved.cpu_s.items() if job in FOLDS)
            self.counts.append((Counter(self.moved.received), Counter(self.moved.sent), folding))

    def a_round(self, names: list[str]) -> Costs:
        """What a node received, sent and folded for in a round, on average."""
        (got, gave, began), (later_got, later_gave, ended) = self.counts
        each = ROUNDS * len(names)
        received = sum(later_got[name] - got[name] for name in names) / each
        sent = sum(later_gave[name] - gave[name] for name in names) / each
        return received, sent, (ended - began) / each


def measure(question: Question, say: Say) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for nodes in tracked(question.nodes, "fleets"):
        plain = _plain(question, nodes)
        rows.append(_row(question, nodes, plain))
        say(", ".join(f"{key} {value}" for key, value in rows[-1].items()))
    received = [row["received_bytes_per_node"] for row in rows]
    folding = [row["fold_cpu_s_per_node"] for row in rows]
    return {
        "params": question.params,
        "folders": question.folders,
        "rows": rows,
        "flat": round(max(received) / min(received), 3),
        "flat_cpu": round(max(folding) / min(folding), 3),
    }


Costs = tuple[float, float, float]
"""Bytes received, bytes sent and seconds folded, by a node in a round."""


def _row(question: Question, nodes: int, plain: Costs) -> dict[str, Any]:
    (received, sent, folding), update_bytes = _play(question, nodes, question.folders)
    return {
        "nodes": nodes,
        "update_bytes": update_bytes,
        "received_bytes_per_node": round(received),
        "sent_bytes_per_node": round(sent),
        "fold_cpu_s_per_node": round(folding, 5),
        "plain_received_bytes_per_node": round(plain[0]),
        "plain_sent_bytes_per_node": round(plain[1]),
        "plain_fold_cpu_s_per_node": round(plain[2], 5),
        "plain_played": nodes <= MOST_PLAIN,
    }


def _plain(question: Question, nodes: int) -> Costs:
    """What a round costs where everybody fetches and folds every other's update; in a large fleet, what that must at
    least be."""
    played = min(nodes, MOST_PLAIN)
    costs, update_bytes = _play(question, played, 0)
    others = (nodes - 1) * float(update_bytes)
    return costs if nodes == played else (others, others, costs[2] * nodes / played)


def _play(question: Question, nodes: int, folders: int) -> tuple[Costs, int]:
    """A round's costs for a node, and the size of an update."""
    layout = make_layout([(f"t{i}", (question.params // TENSORS,)) for i in range(TENSORS)])
    names = [f"n{i}" for i in range(nodes)]
    made: list[TimedTrainer] = []

    def make_trainer() -> TimedTrainer:
        made.append(TimedTrainer(layout, len(made)))
        return made[-1]

    fleet = calm.Fleet(
        recipe=_recipe(question, nodes, folders),
        manifest=Manifest(kind="tokens", dtype="uint8", train=(NUMBERED,), validation=(), context=1),
        make_trainer=make_trainer,
        computers=tuple(calm.Computer(name=name) for name in names),
        seed=question.seed,
    )
    window = Window()
    played = calm.play(fleet, window)
    return window.a_round(names), played.view.path[-1].updates[0].claim.size_bytes


def _recipe(question: Question, nodes: int, folders: int) -> Recipe:
    digest = {"digest": {"kind": "int8", "folders": folders, "when": "always"}} if folders else {}
    values: dict[str, Any] = {
        "name": "digest",
        "seed": question.seed,
        "model": {"kind": "own"},
        "data": {"source": "own", "items": NUMBERED.items},
        "inner": {"kind": "own", "batch_size": 1},
        "strategy": {"preset": "local-sgd", "schedule": {"steps": 2}, **digest},
        "budget": {"rounds": FIRST_ROUND + ROUNDS + 1},
        "membership": {"min_nodes": nodes},
        "storage": {"archive": False, "keep_bytes": 0, "snapshot_every": 1000},
        "evaluation": {"every": 1_000_000_000},
    }
    return parse_recipe(json.dumps(values), overrides=question.settings, environment={}, where="digest")


def table(result: dict[str, Any]) -> list[str]:
    """The result for people."""
    head = (
        f"{'nodes':>5} {'received MB':>12} {'sent MB':>8} {'fold s':>8}   {'without: MB':>11} {'fold s':>8}"
    )
    lines = [f"{result['params']} parameters, {result['folders']} folders a shard; a round of a node", head]
    for row in result["rows"]:
        lines.append(
            f"{row['nodes']:5} {row['received_bytes_per_node'] / 1e6:12.2f} "
            f"{row['sent_bytes_per_node'] / 1e6:8.2f} {row['fold_cpu_s_per_node']:8.4f}   "
            f"{row['plain_received_bytes_per_node'] / 1e6:11.2f} {row['plain_fold_cpu_s_per_node']:8.4f}"
        )
    return [*lines, f"most received by least: {result['flat']}; most folded by least: {result['flat_cpu']}"]
