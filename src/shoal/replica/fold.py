"""The fold: state and a seal's updates to the next state. Pure, total, and the same bits everywhere.

In flow a state and the accepted blobs in seal order with their weights; out flow the new state and which
updates were void. Invariant: a blob that is malformed, not finite or of the wrong shape contributes nothing,
identically on every machine; memory is one chunk an update, never a dense copy of each.

With a digest codec the outer optimiser steps by what the codec's bytes hold of the aggregate and of what earlier ones
left out, the residual: error feedback on the way back from the aggregate, as nodes have on the way to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from shoal.aggregate.base import LARGEST, Aggregator, Combine, Gathering, OuterOptimizer, Sealed
from shoal.aggregate.chunks import Spans, in_chunks
from shoal.base.errors import ShoalError
from shoal.base.layout import Layout
from shoal.base.vectors import copy_of
from shoal.codec import CODECS
from shoal.codec.base import Codec, Source, longest_of
from shoal.replica.graft import apply_graft
from shoal.replica.state import State
from shoal.replica.update import open_update
from shoal.runlog.entries import Genesis
from shoal.runlog.view import Step
from shoal.wire.signed import digest as hashed

RESIDUAL = "digest_residual"
"""The state's vector of what digests have left out so far."""
PLAIN = CODECS["none"]()
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
    warmup_rounds: int = 0
    """Work that begins before so many seals stand is sent, and folded, without any codec's loss."""
    digest: Codec | None = None
    """What every aggregate goes through before the outer optimiser, with a residual of its own."""
    sharded: Codec | None = None
    """What digests are encoded with where others fold for everybody, see `replica.sharded`."""
    choices: tuple[Codec, ...] = ()
    """What a plan may have an update encoded with instead of `codec`, see `Assignment.codec`."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the vectors that the state keeps beside the parameters."""
        return (*self.outer.slots, RESIDUAL) if self.digest else self.outer.slots

    def codec_at(self, place: int, choice: int = 0) -> Codec:
        """What updates are encoded with, of work that was planned when so many seals stood, by the codec of this
        number. Total: a plan that names one that the recipe does not have means the last."""
        if place < self.warmup_rounds:
            return PLAIN
        return (self.codec, *self.choices)[min(choice, len(self.choices))]

    def digest_at(self, place: int) -> Codec | None:
        return self.digest if place >= self.warmup_rounds else None


@dataclass(frozen=True, slots=True)
class SealedBlob:
    """An accepted update as it lies in the store."""

    blob: bytes
    weight: int
    ages: tuple[int, ...] = ()
    """By fragment of the seal, how many versions it had moved on since the update's base; () if none has."""
    place: int = 0
    """How many seals stood when the work was planned."""
    codec: int = 0
    """By which of the recipe's codecs, see `Assignment.codec`."""


@dataclass(frozen=True, slots=True)
class Folded:
    state: State
    void: tuple[int, ...]
    """Indices of updates that contributed nothing."""


def fold_step(state: State, step: Step, blobs: Sequence[bytes], rules: FoldRules) -> State:
    """The state after a seal of the log, whose updates these are (or after a graft, which is one blob)."""
    if step.graft is not None:
        return apply_graft(state, blobs[0])
    updates = [
        SealedBlob(blob, update.weight, update.ages, update.place, update.codec)
        for blob, update in zip(blobs, step.folded, strict=True)
    ]
    folded = fold(
        state,
        step.fragments,
        updates,
        rules,
        whole=step.whole,
        rate=step.rate,
        place=step.place,
        seed=seed_of(step),
    )
    return folded.state


def seed_of(step: Step) -> str:
    """What a rule that draws draws from. Blob ids are hashes of what was sent, so nobody knew this one when choosing an
    update."""
    return hashed("".join(update.claim.blob for update in step.folded).encode())


def fold(
    state: State,
    fragments: tuple[int, ...],
    updates: Sequence[SealedBlob],
    rules: FoldRules,
    whole: int = 0,
    *,
    rate: float = 1.0,
    place: int = 0,
    seed: str | None = None,
) -> Folded:
    """Apply updates, in order, to the named fragments. `whole` is the weight of the whole fleet, where those
    that are here are but a part of it; `rate` a factor on the outer rate; `place` how many seals stood before;
    `seed` see `Gathering.seed`."""
    opened = _opened(updates, state.layout, fragments, rules)
    void = tuple(index for index, sources in enumerate(opened) if sources is None)
    sound = [
        (sources, update) for sources, update in zip(opened, updates, strict=True) if sources is not None
    ]
    if not sound:
        return Folded(state, void)
    params = copy_of(state.params)
    slots = {name: copy_of(vector) for name, vector in state.slots.items()}
    whole = max(whole, sum(update.weight for _, update in sound))
    for number, index in enumerate(fragments):
        part = slice(state.layout.fragments[index].start, state.layout.fragments[index].stop)
        gathering = Gathering(
            updates=[
                Sealed(sources[index], update.weight, update.ages[number] if update.ages else 0)
                for sources, update in sound
            ],
            whole=whole,
            numel=state.layout.fragments[index].numel,
            slots={name: vector[part] for name, vector in slots.items()},
            device=params.device,
            seed=seed,
        )
        here = Part(params[part], dict(gathering.slots), rules.outer, state.taken(index), rate)
        combine, through = rules.aggregator.begin(gathering), rules.digest_at(place)
        if through is None:
            here.fold(combine)
        else:
            here.fold_through(combine, through, _seed(place, index))
    return Folded(State(state.layout, params, slots, counted(state, fragments, rules.outer)), void)


def _opened(
    updates: Sequence[SealedBlob], layout: Layout, fragments: tuple[int, ...], rules: FoldRules
) -> list[dict[int, Source] | None]:
    """Each update's values by fragment, or None if it is void."""

    def opened(update: SealedBlob) -> dict[int, Source] | None:
        return open_update(update.blob, layout, fragments, rules.codec_at(update.place, update.codec))

    threads = min(torch.get_num_threads(), len(updates))
    if threads <= 1:
        return [opened(update) for update in updates]
    with ThreadPoolExecutor(threads, thread_name_prefix="open") as pool:
        return list(pool.map(opened, updates))


def counted(state: State, fragments: tuple[int, ...], outer: OuterOptimizer) -> tuple[int, ...]:
    """How many outer steps each fragment has taken, after one of these."""
    if not outer.counts:
        return state.steps
    every = range(len(state.layout.fragments))
    return tuple(state.taken(index) + (index in fragments) for index in every)


def _seed(place: int, fragment: int) -> int:
    """What a digest's codec draws from: another in every round, the same for everybody."""
    return int(hashed(f"shoal/digest/{place}/{fragment}".encode())[:15], 16)


@dataclass(frozen=True, slots=True)
class Part:
    """One fragment's step, or one shard's: its parameters and slots, changed in place chunk by chunk."""

    params: torch.Tensor
    slots: dict[str, torch.Tensor]
    outer: OuterOptimizer
    taken: int
    rate: float

    def fold(self, combine: Combine) -> None:
        """One aggregate, one step."""
        each_chunk(combine, self.params, self._step)

    def fold_through(self, combine: Combine, codec: Codec, seed: int) -> None:
        """One aggregate into the residual, as much out of it as the codec's bytes hold, and a step by that."""
        residual = self.slots[RESIDUAL]

        def add(start: int, stop: int, aggregate: torch.Tensor) -> None:
            residual[start:stop].add_(aggregate).clamp_(-LARGEST, LARGEST)

        each_chunk(combine, self.params, add)
        source = _through(codec, residual, seed)

        def decode(start: int, stop: int, out: torch.Tensor, scratch: torch.Tensor) -> None:
            if source is None:
                out.copy_(residual[start:stop])
            else:
                source.decode(start, stop, 1.0, out)

        def step(start: int, stop: int, decoded: torch.Tensor) -> None:
            residual[start:stop].sub_(decoded)
            self._step(start, stop, decoded)

        each_chunk(decode, self.params, step)

    def _step(self, start: int, stop: int, update: torch.Tensor) -> None:
        here = {name: vector[start:stop] for name, vector in self.slots.items()}
        self.outer.step(self.params[start:stop], here, update, self.taken, self.rate)


Take = Callable[[int, int, torch.Tensor], None]


def each_chunk(combine: Combine, like: torch.Tensor, take: Take) -> None:
    """Combine every range of a vector like this one, cut it to size, and hand it on."""

    def some(spans: Spans) -> None:
        length = spans[0][1] - spans[0][0]
        out, scratch = torch.empty_like(like[:length]), torch.empty_like(like[:length])
        for start, stop in spans:
            whole = stop - start == out.numel()  # As all are but the last: no slice is needed.
            values = out if whole else out[: stop - start]
            combine(start, stop, values, scratch if whole else scratch[: stop - start])
            take(start, stop, values.clamp_(-LARGEST, LARGEST))

    in_chunks(like.numel(), like.device, some, longest_of(combine))


def _through(codec: Codec, values: torch.Tensor, seed: int) -> Source | None:
    """What is left of values that go through a codec; None if it cannot hold them, and then they go by it whole. Bytes
    may differ with the machine's libraries, but what they decode to does not."""
    try:
        return codec.open(memoryview(codec.encode(values, seed)), values.numel())
    except ShoalError:
        return None
