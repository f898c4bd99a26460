"""Where a forked or merged run begins: the states of its parents, brought to one vector.

In flow a recipe's `start` and the checkpoints of this machine; out flow parameters by tensor name, and what the genesis
entry says of them. Invariant: a mean is taken in float64, in the order of the vertices, and rounded once, so that the
same parents give the same bits everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shoal.base.errors import ShoalError
from shoal.base.layout import Layout
from shoal.checkpoint.library import Library, genesis_of
from shoal.checkpoint.vertices import Vertex
from shoal.data.manifest import Manifest
from shoal.data.manifest import blobs as data_blobs
from shoal.replica.blobs import BlobStore
from shoal.replica.state import State, initial_state
from shoal.runlog.entries import Origin
from shoal.strategy.recipe import Recipe, Start, recipe_in_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    origins: tuple[Origin, ...]
    state: State
    """The parent's; of several, their mean without the outer optimiser's vectors."""
    recipe: Recipe
    """The first parent's."""
    manifest: Manifest
    """Its data."""
    room: BlobStore
    """Where that data lies."""

    def data_for(self, recipe: Recipe, room: BlobStore) -> Manifest | None:
        """The parent's data, copied, where the recipe asks for the same; None if it is to be prepared anew."""
        needed = data_blobs(self.manifest)
        if recipe.data != self.recipe.data or not all(self.room.has(blob) for blob in needed):
            return None
        for blob in needed:
            room.put(self.room.get(blob))
        return self.manifest

    def first_state(self, fresh: State) -> State:
        """The state to begin with, laid out as `fresh`, which a run of the recipe would begin with by itself."""
        return carried(self.state, fresh)


def find_beginning(start: Start, library: Library) -> Beginning:
    """Raises SH-CKPT-01 to -04."""
    dag = library.dag()
    vertices = [dag.find(name) for name in start.vertices]
    for vertex in vertices:
        if not start.unattested:
            require_quorum(vertex)
    weights = start.weights or (1.0,) * len(vertices)
    states = [library.state_of(vertex) for vertex in vertices]
    first = genesis_of(library.view_of(vertices[0].run))
    return Beginning(
        origins=tuple(_origin(v, w / sum(weights)) for v, w in zip(vertices, weights, strict=True)),
        state=states[0] if len(states) == 1 else mean_of(states, weights),
        recipe=recipe_in_log(first.recipe),
        manifest=first.manifest,
        room=library.room_of(vertices[0].run),
    )


def require_quorum(vertex: Vertex) -> None:
    """Raises SH-CKPT-04 unless more than two thirds of the members, or of their work, signed for the state."""
    quorum = vertex.quorum
    if not (quorum.reached("count") or quorum.reached("stake")):
        signed, of = quorum.part()
        raise ShoalError(
            "SH-CKPT-04",
            f"{signed} of {of} members signed for checkpoint {vertex.id[:12]}: no two thirds",
            "take another (shoal ckpt list), or say --unattested",
        )


def _origin(vertex: Vertex, weight: float) -> Origin:
    return Origin(vertex=vertex.id, run=vertex.run, at=vertex.at, state=vertex.model, weight=weight)


def mean_of(states: list[State], weights: tuple[float, ...]) -> State:
    """The weighted mean of the parameters, in the first state's layout. Raises SH-CKPT-03."""
    layout, whole = states[0].layout, sum(weights)
    total = torch.zeros(layout.numel, dtype=torch.float64)
    for state, weight in zip(states, weights, strict=True):
        total += _laid_out(state, layout).double() * (weight / whole)
    return State(layout, total.float(), {})


def carried(state: State, fresh: State) -> State:
    """The state in another's layout; its outer optimiser's vectors too, where the layouts and vectors are the same."""
    same = state.layout == fresh.layout and state.slots.keys() == fresh.slots.keys()
    if same and state.slots:
        return state
    params = _laid_out(state, fresh.layout)
    return initial_state(fresh.layout, params, tuple(sorted(fresh.slots)))


def _laid_out(state: State, layout: Layout) -> torch.Tensor:
    """The parameters as another layout has them, tensor by tensor. Raises SH-CKPT-03 where they are others."""
    if state.layout.tensors == layout.tensors:
        return state.params
    known = {spec.name: spec for spec in state.layout.tensors}
    wanted = {spec.name: spec.shape for spec in layout.tensors}
    if {name: spec.shape for name, spec in known.items()} != wanted:
        odd = sorted({*known} ^ {*wanted}) or [n for n in sorted(wanted) if known[n].shape != wanted[n]]
        raise ShoalError(
            "SH-CKPT-03",
            f"the checkpoint's parameters are others than the model's: {', '.join(odd[:3])}",
            "leave the model as it is in the checkpoint's recipe",
        )
    pieces = [known[spec.name] for spec in layout.tensors]
    return torch.cat([state.params[spec.offset : spec.offset + spec.numel] for spec in pieces])
