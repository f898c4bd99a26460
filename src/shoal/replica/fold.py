"""The fold: state and a seal's updates to the next state. Pure, total, and the same bits everywhere.

In flow a state and the accepted blobs in seal order with their weights; out flow the new state and which
updates were void. Invariant: a blob that is malformed, not finite or of the wrong shape contributes nothing,
identically on every machine; memory is one chunk an update, never a dense copy of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shoal.aggregate.base import Aggregator, OuterOptimizer
from shoal.codec.base import CHUNK, Codec, Source
from shoal.replica.state import State
from shoal.replica.update import open_update


@dataclass(frozen=True, slots=True)
class FoldRules:
    """The pieces of the recipe that the fold runs."""

    codec: Codec
    aggregator: Aggregator
    outer: OuterOptimizer


@dataclass(frozen=True, slots=True)
class Folded:
    state: State
    void: tuple[int, ...]
    """Indices of updates that contributed nothing."""


def fold(
    state: State,
    fragments: tuple[int, ...],
    updates: Sequence[tuple[bytes, int]],
    rules: FoldRules,
) -> Folded:
    """Apply (blob, weight) pairs, in order, to the named fragments."""
    opened = [open_update(blob, state.layout, fragments, rules.codec) for blob, _ in updates]
    void = tuple(index for index, sources in enumerate(opened) if sources is None)
    sound = [(s, weight) for s, (_, weight) in zip(opened, updates, strict=True) if s is not None]
    if not sound:
        return Folded(state, void)
    params = state.params.clone()
    slots = {name: vector.clone() for name, vector in state.slots.items()}
    weights = [weight for _, weight in sound]
    for index in fragments:
        part = slice(state.layout.fragments[index].start, state.layout.fragments[index].stop)
        sources = [by_fragment[index] for by_fragment, _ in sound]
        _fold_fragment(params[part], {k: v[part] for k, v in slots.items()}, sources, weights, rules)
    return Folded(State(state.layout, params, slots), void)


def _fold_fragment(
    params: torch.Tensor,
    slots: dict[str, torch.Tensor],
    sources: list[Source],
    weights: list[int],
    rules: FoldRules,
) -> None:
    numel = params.numel()
    combine = rules.aggregator.begin(sources, weights, numel)
    out, scratch = torch.empty_like(params[:CHUNK]), torch.empty_like(params[:CHUNK])
    for start in range(0, numel, CHUNK):
        stop = min(start + CHUNK, numel)
        aggregate, spare = out[: stop - start], scratch[: stop - start]
        combine(start, stop, aggregate, spare)
        here = {name: vector[start:stop] for name, vector in slots.items()}
        rules.outer.step(params[start:stop], here, aggregate)
