"""The checkpoints of a coordinator's home, as tables and as JSON.

In flow a home or a store's address; out flow the library, the graph and lines for people. Invariant: looking changes
nothing, so that a damaged store can be looked at as often as one likes.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3
import torch

from shoal.apps.home import Home, find_home
from shoal.apps.printable import printable
from shoal.apps.progress import Bar, tracked
from shoal.base.disk import SubDisk
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.base.units import show_bytes
from shoal.checkpoint.archive import PINS, cuts_of
from shoal.checkpoint.dag import Dag, common_ancestor
from shoal.checkpoint.library import Library
from shoal.checkpoint.vertices import WEIGHINGS, Vertex
from shoal.replica.blobs import BlobStore
from shoal.replica.state import encode_state
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.sqlstore import SqlLogStore


@dataclass(frozen=True, slots=True)
class Opened:
    """A coordinator's home, open."""

    home: Home
    store: SqlLogStore
    library: Library

    def room(self, run: RunId) -> BlobStore:
        return self.library.room_of(run)

    def disk(self, run: RunId) -> SubDisk:
        return _disk(self.home, run if run in self.store.runs() else RunId("imported"))

    def pinned(self, dag: Dag) -> list[str]:
        """The vertices whose snapshot is pinned."""
        pins = {run: set(self.disk(run).list(PINS)) for run in {v.run for v in dag.vertices}}
        return [v.id for v in dag.vertices if v.snapshot in pins[v.run]]

    def pin(self, vertex: Vertex) -> None:
        """Durably. The file's name says it all, so that nothing in it can rot."""
        disk = self.disk(vertex.run)
        disk.write(f"{PINS}/{vertex.snapshot}", b"")
        disk.sync(f"{PINS}/{vertex.snapshot}")
        disk.sync_folder(PINS)

    def unpin(self, vertex: Vertex) -> None:
        self.disk(vertex.run).remove(f"{PINS}/{vertex.snapshot}")


@contextlib.contextmanager
def opened(home: Path | None, store: str | None, *, create: bool = False) -> Iterator[Opened]:
    """Open a home's store. Raises SH-LOG-04."""
    where = find_home(home)
    with contextlib.closing(SqlLogStore(store or where.store_url, create=create)) as logs:
        library = Library(logs, lambda run: BlobStore(_disk(where, run), _pass), _followed)
        with Bar("reading checkpoints"):
            yield Opened(where, logs, library)


def _followed(log: list[bytes]) -> Iterator[bytes]:
    return tracked(log, "entries")


def _disk(home: Home, run: RunId) -> SubDisk:
    return SubDisk(FileDisk(home.coordinator), f"runs/{run}")


def _pass(point: str) -> None:
    return None


# --- for people ----------------------------------------------------------------------------------------


def lines_of(dag: Dag, stored: dict[str, bool], pinned: list[str]) -> Iterator[str]:
    """One line for each vertex."""
    head = ("checkpoint", "kind", "run", "at", "rounds", "loss", "signed", "parents", "")
    yield "{:14} {:8} {:22} {:>6} {:>7} {:>8} {:>8}  {:26} {}".format(*head)
    for vertex in dag.vertices:
        metrics, (signed, of) = vertex.metrics, vertex.quorum.part()
        loss = metrics.validation if metrics.validation is not None else metrics.loss
        notes = [
            "" if vertex.stands else "undone",
            "" if stored[vertex.id] else "not stored",
            "pinned" if vertex.id in pinned else "",
        ]
        yield "{:14} {:8} {:22} {:>6} {:>7g} {:>8} {:>8}  {:26} {}".format(
            vertex.id[:12],
            vertex.kind,
            printable(vertex.run_name)[:22],
            vertex.at,
            metrics.rounds,
            "" if loss is None else f"{loss:.4f}",
            f"{signed}/{of}" + ("" if vertex.quorum.reached() else "!"),
            " ".join(parent[:12] for parent in vertex.parents),
            ", ".join(note for note in notes if note),
        ).rstrip()


def story_of(vertex: Vertex, stored: bool) -> Iterator[str]:
    """One vertex, all of it."""
    moment = datetime.datetime.fromtimestamp(vertex.time_ms / 1000, datetime.UTC)
    yield f"checkpoint {vertex.id} ({vertex.kind})"
    yield f"  run        {vertex.run} {printable(vertex.run_name)}, position {vertex.at}"
    yield f"  saved      {moment:%Y-%m-%d %H:%M:%S} UTC, {show_bytes(vertex.size_bytes)}" + (
        "" if stored else ", not stored here any more"
    )
    yield f"  model      {vertex.model}"
    yield f"  recipe     {vertex.recipe}"
    yield f"  log        {vertex.head}"
    for number, parent in enumerate(vertex.parents):
        part = f" ({vertex.weights[number]:.3g} of the mean)" if vertex.weights else ""
        yield f"  parent     {parent}{part}"
    metrics = vertex.metrics
    yield f"  trained    {metrics.rounds:g} rounds, {metrics.steps:g} steps, {metrics.tokens} tokens"
    for name, value in (("loss", metrics.loss), ("validation", metrics.validation)):
        if value is not None:
            yield f"  {name:<10} {value:.6f}"
    for item in vertex.contributors:
        yield f"  by         {item.node[:12]} {printable(item.name)}: {item.share:.1%}"
    for weighing in WEIGHINGS:
        signed, of = vertex.quorum.part(weighing)
        reached = "a quorum" if vertex.quorum.reached(weighing) else "no quorum"
        yield f"  by {weighing}   {signed} of {of} signed: {reached}"
    for vote in vertex.quorum.votes:
        yield f"  signed     {vote.node[:12]} {vote.signature[:32]}..."


# --- two of them ---------------------------------------------------------------------------------------


def compare(opened: Opened, dag: Dag, one: Vertex, other: Vertex) -> dict[str, Any]:
    """What two vertices differ in: recipes, metrics, tensors, chunks."""
    library = opened.library
    recipes = [json.loads(_recipe(library, vertex)) for vertex in (one, other)]
    return {
        "one": one.id,
        "other": other.id,
        "common_ancestor": common_ancestor(dag, one, other),
        "same_model": one.model == other.model,
        "recipe": {
            name: {"one": left, "other": right} for name, left, right in _changed(recipes[0], recipes[1])
        },
        "metrics": {
            name: {"one": getattr(one.metrics, name), "other": getattr(other.metrics, name)}
            for name in ("rounds", "steps", "tokens", "loss", "validation")
        },
        **_tensors(library, one, other),
        **_shared(opened, one, other),
    }


def _recipe(library: Library, vertex: Vertex) -> str:
    genesis = library.view_of(vertex.run).genesis
    assert genesis is not None
    return genesis.recipe


def _changed(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every field of two recipes in which they differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted({*one, *other}):
            yield from _changed(one.get(name), other.get(name), f"{path}.{name}" if path else name)
    elif one != other:
        yield path, one, other


def _tensors(library: Library, one: Vertex, other: Vertex) -> dict[str, Any]:
    """How far the parameters are apart, tensor by tensor, against the size of the first's."""
    try:
        left, right = library.state_of(one), library.state_of(other)
    except ShoalError as error:
        return {"tensors": None, "tensors_missing": error.cause}
    theirs = {spec.name: spec for spec in right.layout.tensors}
    apart: dict[str, float | None] = {}
    for spec in left.layout.tensors:
        same = theirs.get(spec.name)
        if same is None or same.shape != spec.shape:
            apart[spec.name] = None
            continue
        mine = left.params[spec.offset : spec.offset + spec.numel].double()
        their = right.params[same.offset : same.offset + same.numel].double()
        size = float(torch.linalg.vector_norm(mine))
        apart[spec.name] = float(torch.linalg.vector_norm(their - mine)) / (size or 1.0)
    return {"tensors": apart, "unchanged": sum(value == 0 for value in apart.values())}


def _shared(opened: Opened, one: Vertex, other: Vertex) -> dict[str, Any]:
    """How much of the two snapshots is the same chunks."""
    sizes = []
    for vertex in (one, other):
        try:
            state = opened.library.state_of(vertex)
        except ShoalError:
            return {}
        data = encode_state(state)
        cuts = cuts_of(data, state.layout)
        sizes.append({blake3.blake3(data[start:stop]).digest(): stop - start for start, stop in cuts})
    common = sizes[0].keys() & sizes[1].keys()
    return {"shared_bytes": sum(sizes[0][hashed] for hashed in common), "snapshot_bytes": other.size_bytes}


def show_difference(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['one'][:12]} and {found['other'][:12]}"
    ancestor = found["common_ancestor"]
    yield f"  common ancestor  {ancestor[:12] if ancestor else 'none'}"
    for name, sides in found["recipe"].items():
        yield f"  recipe {name}: {printable(str(sides['one']))} -> {printable(str(sides['other']))}"
    for name, sides in found["metrics"].items():
        if sides["one"] != sides["other"]:
            yield f"  {name}: {sides['one']} -> {sides['other']}"
    if found["same_model"]:
        yield "  the model is the same, bit for bit"
    for name, apart in sorted((found["tensors"] or {}).items(), key=lambda item: -(item[1] or 9e9)):
        yield f"  {printable(name):40} " + ("is another tensor" if apart is None else f"{apart:.3%} apart")
    if "shared_bytes" in found:
        shared, whole = show_bytes(found["shared_bytes"]), show_bytes(found["snapshot_bytes"])
        yield f"  {shared} of {whole} are the same chunks"
