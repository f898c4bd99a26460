"""The fold: state and a seal's updates to the next state. Pure, total, and the same bits everywhere.

In flow a state and the accepted blobs in seal order with their weights; out flow the new state and which
updates were void. Invariant: a blob that is malformed, not finite or of the wrong shape contributes nothing,
identically on every machine; memory is one chunk an update, never a dense copy of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shoal.aggregate.base import LARGEST, Aggregator, Gathering, OuterOptimizer, Sealed
from shoal.aggregate.chunks import Spans, in_chunks
from shoal.base.errors import ShoalError
from shoal.codec.base import CHUNK, Codec
from shoal.replica.state import State
from shoal.replica.update import open_update
from shoal.runlog.entries import Genesis

ARITHMETIC = 1
"""The version of the fold's arithmetic, to the last bit. A run is folded by the version it began with."""


def check_arithmetic(genesis: Genesis) -> None:
    """Raise SH-JOIN-06 if this program would fold the run to other bits than those who began it."""
    if genesis.arithmetic != ARITHMETIC:
        raise ShoalError(
            "SH-JOIN-06",
            f"the run is folded by arithmetic {genesis.arithmetic}, this program has {ARITHMETIC}",
            "install the version of shoal that the run was founded with",
        )


@dataclass(frozen=True, slots=True)
class FoldRules:
    """The pieces of the recipe that the fold runs."""

    codec: Codec
    aggregator: Aggregator
    outer: OuterOptimizer


@dataclass(frozen=True, slots=True)
class SealedBlob:
    """An accepted update as it lies in the store."""

    blob: bytes
    weight: int
    ages: tuple[int, ...] = ()
    """By fragment of the seal, how many versions it had moved on since the update's base; () if none has."""


@dataclass(frozen=True, slots=True)
class Folded:
    state: State
    void: tuple[int, ...]
    """Indices of updates that contributed nothing."""


def fold(
    state: State,
    fragments: tuple[int, ...],
    updates: Sequence[SealedBlob],
    rules: FoldRules,
    whole: int = 0,
) -> Folded:
    """Apply updates, in order, to the named fragments. `whole` is the weight of the whole fleet, where those
    that are here are but a part of it."""
    opened = [open_update(update.blob, state.layout, fragments, rules.codec) for update in updates]
    void = tuple(index for index, sources in enumerate(opened) if sources is None)
    sound = [
        (sources, update) for sources, update in zip(opened, updates, strict=True) if sources is not None
    ]
    if not sound:
        return Folded(state, void)
    params = state.params.clone()
    slots = {name: vector.clone() for name, vector in state.slots.items()}
    whole = max(whole, sum(update.weight for _, update in sound))
    for place, index in enumerate(fragments):
        part = slice(state.layout.fragments[index].start, state.layout.fragments[index].stop)
        gathering = Gathering(
            updates=[
                Sealed(sources[index], update.weight, update.ages[place] if update.ages else 0)
                for sources, update in sound
            ],
            whole=whole,
            numel=state.layout.fragments[index].numel,
            slots={name: vector[part] for name, vector in slots.items()},
            device=params.device,
        )
        _fold_fragment(params[part], dict(gathering.slots), gathering, rules, state.taken(index))
    return Folded(State(state.layout, params, slots, _counted(state, fragments, rules.outer)), void)


def _counted(state: State, fragments: tuple[int, ...], outer: OuterOptimizer) -> tuple[int, ...]:
    if not outer.counts:
        return state.steps
    every = range(len(state.layout.fragments))
    return tuple(state.taken(index) + (index in fragments) for index in every)


def _fold_fragment(
    params: torch.Tensor,
    slots: dict[str, torch.Tensor],
    gathering: Gathering,
    rules: FoldRules,
    taken: int,
) -> None:
    combine = rules.aggregator.begin(gathering)

    def fold_some(spans: Spans) -> None:
        out, scratch = torch.empty_like(params[:CHUNK]), torch.empty_like(params[:CHUNK])
        for start, stop in spans:
            aggregate = out[: stop - start]
            combine(start, stop, aggregate, scratch[: stop - start])
            here = {name: vector[start:stop] for name, vector in slots.items()}
            rules.outer.step(params[start:stop], here, aggregate.clamp_(-LARGEST, LARGEST), taken)

    in_chunks(params.numel(), params.device, fold_some)
