"""Vertices of many runs as one graph: found by the beginning of an id, compared, and as plain values for others.

In flow vertices; out flow the graph and its JSON. Invariant: an edge leads from a parent to a child, whether or not the
parent's own log is here; a parent that is not is named in `absent`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.base.errors import ShoalError
from shoal.checkpoint.vertices import WEIGHINGS, Quorum, Vertex

MIN_PREFIX = 4


@dataclass(frozen=True, slots=True)
class Dag:
    vertices: tuple[Vertex, ...]
    """Parents before children."""

    @property
    def by_id(self) -> dict[str, Vertex]:
        return {vertex.id: vertex for vertex in self.vertices}

    @property
    def edges(self) -> list[tuple[str, str]]:
        return [(parent, vertex.id) for vertex in self.vertices for parent in vertex.parents]

    @property
    def absent(self) -> list[str]:
        """Parents whose log is not here."""
        return sorted({parent for parent, _ in self.edges} - self.by_id.keys())

    @property
    def heads(self) -> list[str]:
        """Vertices that nothing was made of yet."""
        parents = {parent for parent, _ in self.edges}
        return [vertex.id for vertex in self.vertices if vertex.id not in parents]

    def find(self, name: str) -> Vertex:
        """The vertex with this id, or whose id alone begins so. Raises SH-CKPT-01."""
        found = [vertex for vertex in self.vertices if vertex.id.startswith(name)]
        if len(found) == 1 and len(name) >= MIN_PREFIX:
            return found[0]
        what = f"{len(found)} checkpoints begin with" if found else "there is no checkpoint"
        more = f"give more letters of its id, {MIN_PREFIX} at least; " if found else ""
        raise ShoalError("SH-CKPT-01", f"{what} {name[:64]!r}", f"{more}see which there are: shoal ckpt list")

    def ancestors(self, vertex: Vertex) -> list[str]:
        """Every vertex that led here, itself included, nearest first."""
        known, seen, queue = self.by_id, dict.fromkeys([vertex.id]), [vertex.id]
        while queue:
            here = known.get(queue.pop(0))
            for parent in here.parents if here else ():
                if parent not in seen:
                    seen[parent] = None
                    queue.append(parent)
        return list(seen)


def make_dag(vertices: Iterable[Vertex]) -> Dag:
    """A graph, parents before children, by time where that leaves a choice."""
    left = {vertex.id: vertex for vertex in vertices}
    order: list[Vertex] = []
    while left:
        ready = [v for v in left.values() if not any(parent in left for parent in v.parents)]
        nearest = min(ready, key=lambda v: (v.time_ms, v.run, v.at))
        order.append(left.pop(nearest.id))
    return Dag(tuple(order))


def common_ancestor(dag: Dag, one: Vertex, other: Vertex) -> str | None:
    """The nearest vertex that led to both."""
    theirs = set(dag.ancestors(other))
    return next((vertex for vertex in dag.ancestors(one) if vertex in theirs), None)


def as_json(
    dag: Dag, *, stored: Mapping[str, bool] | None = None, pinned: Iterable[str] = ()
) -> dict[str, Any]:
    """The graph as plain values, for tools and the dashboard. `stored` says which states are here, by vertex."""
    pins = set(pinned)
    return {
        "vertices": [
            vertex_json(vertex)
            | {
                "stored": None if stored is None else stored.get(vertex.id, False),
                "pinned": vertex.id in pins,
            }
            for vertex in dag.vertices
        ],
        "edges": [list(edge) for edge in dag.edges],
        "heads": dag.heads,
        "absent": dag.absent,
    }


def vertex_json(vertex: Vertex) -> dict[str, Any]:
    metrics = vertex.metrics
    return {
        "id": vertex.id,
        "kind": vertex.kind,
        "parents": list(vertex.parents),
        "weights": list(vertex.weights),
        "run": vertex.run,
        "run_name": vertex.run_name,
        "position": vertex.at,
        "head": vertex.head,
        "model": vertex.model,
        "recipe": vertex.recipe,
        "snapshot": vertex.snapshot,
        "size_bytes": vertex.size_bytes,
        "holders": list(vertex.holders),
        "contributors": [
            {"node": item.node, "name": item.name, "weight": item.weight, "share": round(item.share, 6)}
            for item in vertex.contributors
        ],
        "metrics": {
            "rounds": metrics.rounds,
            "steps": metrics.steps,
            "tokens": metrics.tokens,
            "loss": metrics.loss,
            "validation": metrics.validation,
        },
        "quorum": quorum_json(vertex.quorum),
        "stands": vertex.stands,
        "time_ms": vertex.time_ms,
    }


def quorum_json(quorum: Quorum) -> dict[str, Any]:
    weighed: dict[str, Any] = {
        weighing: {
            "signed": quorum.part(weighing)[0],
            "of": quorum.part(weighing)[1],
            "reached": quorum.reached(weighing),
        }
        for weighing in WEIGHINGS
    }
    votes = [{"node": vote.node, "signature": vote.signature, "stake": vote.stake} for vote in quorum.votes]
    return {**weighed, "signatures": votes}
