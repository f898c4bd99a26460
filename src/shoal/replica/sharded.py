"""Folding through digests: a folder's part of it, and everybody's step from what the folders made.

In flow a state, the shards of a seal and their parts of every update; out flow digests with the residuals they leave,
and the next state. Invariant: both are pure and total, and the same bits everywhere; a shard is folded as if it were a
fragment, so that no rule looks beyond it; what no digest can be made of is folded by everybody, without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from shoal.aggregate.base import LARGEST, Combine, Gathering, Sealed
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.replica.fold import FoldRules, Part, counted, each_chunk, fold_step, seed_of
from shoal.replica.parts import split_parts
from shoal.replica.state import State
from shoal.runlog.sharding import Shard
from shoal.runlog.view import Step
from shoal.wire.signed import digest as hashed

Parts = Sequence[bytes | None]
"""One shard's part of each update of the seal, in order; None where an update has no such part."""


@dataclass(frozen=True, slots=True)
class Made:
    """A digest, and what it left out."""

    payload: bytes
    residual: torch.Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a seal is folded from, by the number of the shard: digests, and parts where there is none."""

    digests: Mapping[int, bytes]
    parts: Mapping[int, Parts]


def make_digest(
    state: State, step: Step, shard: Shard, parts: Parts, rules: FoldRules, residual: torch.Tensor | None
) -> Made | None:
    """What a shard's folders publish: aggregate and residual (None: nothing yet) as the digest's codec holds them. None
    if no part is sound, or the codec cannot hold them."""
    here = slice(shard.start, shard.stop)
    slots = {name: vector[here] for name, vector in state.slots.items()}
    combine = _aggregate(step, shard, parts, rules, slots, state.params.device)
    if combine is None or rules.sharded is None:
        return None
    total = torch.zeros_like(state.params[here])
    if residual is not None:
        total.copy_(residual)

    def add(start: int, stop: int, aggregate: torch.Tensor) -> None:
        total[start:stop].add_(aggregate).clamp_(-LARGEST, LARGEST)

    each_chunk(combine, total, add)
    try:
        payload = rules.sharded.encode(total, _seed(step.place, shard))
    except ShoalError:
        return None
    decode = _decoded(payload, shard, rules)
    if decode is None:
        return None

    def subtract(start: int, stop: int, decoded: torch.Tensor) -> None:
        total[start:stop].sub_(decoded)

    each_chunk(decode, total, subtract)
    return Made(payload, total)


def fold_shards(state: State, step: Step, inputs: Inputs, rules: FoldRules) -> State:
    """The state after a seal whose digests the log has. A shard of which neither digest nor parts are sound stays as
    it is, and a fragment of which no shard moves does not count the step."""
    params = state.params.clone()
    slots = {name: vector.clone() for name, vector in state.slots.items()}
    moved = set()
    for number, shard in enumerate(step.shards):
        here = slice(shard.start, shard.stop)
        mine = {name: vector[here] for name, vector in slots.items()}
        if number in inputs.digests:
            combine = _decoded(inputs.digests[number], shard, rules)
        else:
            combine = _aggregate(step, shard, inputs.parts[number], rules, mine, params.device)
        if combine is not None:
            taken = state.taken(shard.fragment)
            Part(params[here], mine, rules.outer, taken, step.rate).fold(combine)
            moved.add(shard.fragment)
    if not moved:
        return state
    return State(state.layout, params, slots, counted(state, tuple(sorted(moved)), rules.outer))


def fold_stored(state: State, step: Step, read: Callable[[BlobId], bytes], rules: FoldRules) -> State:
    """The state after any seal, from whole blobs. Raises what `read` raises."""
    if not step.shards:
        return fold_step(state, step, [read(blob) for blob in step.blobs], rules)
    digests = {n: read(item.blob) for n, item in enumerate(step.digests or ()) if item is not None}
    plain = step.folded_by_all
    cuts = [split_parts(read(u.claim.blob), len(step.shards)) for u in step.folded] if plain else []
    parts = {number: [within(step.shards[number], found, number) for found in cuts] for number in plain}
    return fold_shards(state, step, Inputs(digests, parts), rules)


def within(shard: Shard, parts: Sequence[bytes] | None, number: int) -> bytes | None:
    """A shard's part of an update, unless it has none or a longer one than it may."""
    part = parts[number] if parts else None
    return part if part is not None and len(part) <= shard.most_bytes else None


def _aggregate(
    step: Step,
    shard: Shard,
    parts: Parts,
    rules: FoldRules,
    slots: Mapping[str, torch.Tensor],
    device: torch.device,
) -> Combine | None:
    """What the updates come to in a shard; None if none of them has anything for it."""
    sealed = []
    for part, update in zip(parts, step.folded, strict=True):
        codec = rules.codec_at(update.place, update.codec)
        source = codec.open(memoryview(part), shard.numel) if part is not None else None
        if source is not None:
            sealed.append(Sealed(source, update.weight))
    if not sealed:
        return None
    gathering = Gathering(
        updates=sealed,
        whole=max(step.whole, sum(one.weight for one in sealed)),
        numel=shard.numel,
        slots=slots,
        device=device,
        seed=seed_of(step),
    )
    return rules.aggregator.begin(gathering)


def _decoded(payload: bytes, shard: Shard, rules: FoldRules) -> Combine | None:
    source = rules.sharded.open(memoryview(payload), shard.numel) if rules.sharded else None
    if source is None:
        return None

    def decode(start: int, stop: int, out: torch.Tensor, scratch: torch.Tensor) -> None:
        source.decode(start, stop, 1.0, out)

    return decode


def _seed(place: int, shard: Shard) -> int:
    """What a digest's codec draws from: another in every round, the same for all folders of a shard."""
    return int(hashed(f"shoal/digest/{place}/{shard.fragment}/{shard.start}".encode())[:15], 16)
