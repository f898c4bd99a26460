"""The local model between two claims: steps, merges, and the update that comes of them.

In flow global states and assignments; out flow pseudo-gradients as blobs. Invariant: an update is what was trained
since the last one, encoded once; what the codec leaves out stays in the residual, and so does, in the end, what a
claim that came to nothing had taken from it; every sample that entered the update is named in its data ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import msgspec
import torch

from shoal.aggregate.base import Preparing
from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId
from shoal.base.layout import Layout
from shoal.base.vectors import copy_of
from shoal.codec.base import CHUNK, Source
from shoal.codec.feedback import encode_with_feedback
from shoal.codec.sparse import SparseCodec
from shoal.data.assignment import sample_indices
from shoal.node.private import Privately
from shoal.node.progress import Progress, Unsettled
from shoal.replica.blobs import chunk_list
from shoal.replica.fold import PLAIN, SealedBlob
from shoal.replica.parts import join_parts
from shoal.replica.state import State
from shoal.replica.update import encode_update, open_cut, open_update
from shoal.runlog.entries import Assignment
from shoal.runlog.sharding import Span, cut
from shoal.runlog.statements import MAX_MERGES
from shoal.strategy.merge import Here, Pairs
from shoal.strategy.recipe import Recipe
from shoal.training.trainer import Trainer
from shoal.wire.signed import digest

MAX_CARRIED = 4
"""Data ranges that unclaimed progress may have; a node that misses more rounds begins again."""
MAX_UNSETTLED = 8
"""Claims whose fate is waited for; what older ones had is given up."""


class _Local(msgspec.Struct, frozen=True):
    trainer: bytes
    residual: bytes
    unsettled: tuple[Unsettled, ...] = ()
    """Earlier claims whose values are neither in the residual nor known to be accepted."""
    place: int = 0
    """Of the update that was made last, see `Unsettled.place`."""
    shards: int = 0
    """Of the same, see `Unsettled.shards`."""
    salt: bytes = b""
    """In a private run: secret, so that the hash in the claim tells nothing about what is hashed."""
    codec: int = 0
    """Of the update that was made last, see `Unsettled.codec`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpdate:
    blob: bytes
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateState:
    """What to go on from after an update, durable beside its claim, and the hashes around it."""

    data: bytes
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Global:
    """A global version, and what is new in it."""

    params: torch.Tensor
    position: int = 0
    fragments: tuple[int, ...] | None = None
    """Those that changed since the version before; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A seal in which this node met another: both their updates, None where one is not to be had."""

    position: int
    sequence: int
    """Of this node's claim in it."""
    fragments: tuple[int, ...]
    mine: SealedBlob | None
    theirs: SealedBlob | None


class Learner:
    """Owns a trainer, and works where its parameters are. Not safe for concurrent use: one job at a time."""

    def __init__(
        self, trainer: Trainer, recipe: Recipe, train_items: int, privately: Privately | None = None
    ) -> None:
        self.trainer = trainer
        self.privately = privately
        self.progress = Progress()
        self.unsettled: tuple[Unsettled, ...] = ()
        self._recipe = recipe
        self._items = train_items
        self._rules = recipe.strategy.fold_rules()
        self._feedback = recipe.strategy.codec.error_feedback
        self._prepare = self._rules.outer if isinstance(self._rules.outer, Preparing) else None
        self._takes_back = self._feedback and self._prepare is None
        self._decay = recipe.strategy.codec.feedback_decay
        self._merge = recipe.strategy.merge_rule()
        self._known: torch.Tensor | None = None
        self._anchor: torch.Tensor | None = None
        self._last_sent = -1
        self._anchor_of = -1
        """The claim whose model the anchor is; -1 if it is none's."""
        self._gap = 1
        self._later: Global | None = None
        """The newest global version, if it must wait until the assignment is done."""
        self._residual: torch.Tensor | None = None
        self._place = self._shards = self._codec = 0
        self._local_hash = private_id(trainer.local_state())

    # --- global versions ---------------------------------------------------------------------------------

    def adopt(self, new: Global, *, working: bool = False, settled: int | None = None) -> None:
        """Take a new global version, by the recipe's merge rule. `working`: in the middle of an assignment;
        `settled`: the last of this node's updates that is not on its way any more, None if none is."""
        if self._later is not None:
            new = _joined(self._later, new)
        self._later = None
        crowded = len(self.progress.data or ()) >= MAX_CARRIED or len(self.progress.merges) >= MAX_MERGES
        if self._anchor is None or self._known is None or (crowded and not working):
            self._start(new.params)
        elif working and not self._may_merge():
            self._later = new
        else:
            pending = settled is not None and self._last_sent > settled
            self._merge_in(new, self._anchor, self._known, pending)

    def begin(self, steps: int) -> None:
        """A new assignment of so many steps: take the version that had to wait for it."""
        self._gap = -(-steps // (MAX_MERGES - 1))
        if self._later is not None:
            later, self._later = self._later, None
            self.adopt(later)

    def _may_merge(self) -> bool:
        """Whether a new version may be taken in the middle of the work: a claim has room for so many, which are
        spread over its steps."""
        merges = self.progress.merges
        spread = not merges or self.progress.steps - merges[-1].step >= self._gap
        return self._merge.keeps_progress and len(merges) < MAX_MERGES and spread

    def _start(self, params: torch.Tensor) -> None:
        self.progress, self._anchor_of = Progress(), -1
        self.trainer.load(params)
        self._anchor = self._known = params.to(self.trainer.params().device)

    def _merge_in(self, new: Global, anchor: torch.Tensor, known: torch.Tensor, pending: bool) -> None:
        layout = self.trainer.layout.fragments
        touched = range(len(layout)) if new.fragments is None else new.fragments
        live = self.trainer.params().detach()
        params = new.params.to(live.device)
        whole = len(layout) == 1  # Then every copy into a part of something is one of all of it, and spared.
        local, anchor = (live, anchor) if whole else (live.clone(), anchor.clone())
        for index in touched:
            part = slice(layout[index].start, layout[index].stop)
            here = Here(local=local[part], anchor=anchor[part], known=known[part], pending=pending)
            merged = self._merge.merge(here, params[part])
            if whole:
                local, anchor = merged.local, _apart(merged.anchor, live)
            else:
                local[part], anchor[part] = merged.local, merged.anchor
        self.trainer.load(local)
        self._anchor, self._known = anchor, params
        if self._merge.keeps_progress or len(touched) < len(layout):
            self.progress.merged(new.position)
        else:
            self.progress = Progress()

    # --- partners ----------------------------------------------------------------------------------------

    def meet(self, met: Met) -> bool:
        """Go towards a partner's model, by the recipe's merge rule; False if there is none to be had, and this node
        goes on alone. One that was restarted takes up its own model first, from its own update."""
        known, rule = self._known, self._merge
        if known is None or not isinstance(rule, Pairs):
            return False
        mine = None if met.sequence == self._anchor_of else self._model_in(met.mine, met.fragments, known)
        if mine is not None:
            self._start(mine)
            self._known = known
        theirs = self._model_in(met.theirs, met.fragments, known)
        self._anchor_of = -1
        if theirs is None or self._anchor is None:
            return False
        if len(self.progress.data or ()) >= MAX_CARRIED or len(self.progress.merges) >= MAX_MERGES:
            self.trainer.load(self._anchor)
            self.progress = Progress()
        here = Here(local=self.trainer.params().detach(), anchor=self._anchor, known=known)
        merged = rule.meet(here, theirs)
        self.trainer.load(merged.local)
        self._anchor = merged.anchor
        self.progress.merged(met.position)
        return True

    def _model_in(
        self, update: SealedBlob | None, fragments: tuple[int, ...], known: torch.Tensor
    ) -> torch.Tensor | None:
        """The model that an update leads to from the last common state; None if it is no update, or leads nowhere."""
        layout = self.trainer.layout
        codec = self._rules.codec_at(update.place, update.codec) if update else PLAIN
        opened = open_update(update.blob, layout, fragments, codec) if update else None
        if opened is None:
            return None
        model = known.clone()
        _accumulate(opened, layout, -1.0, model)
        return model if bool(torch.isfinite(model).all()) else None

    def forget(self) -> None:
        """The local model stands on a state that was undone: start from the next one, whole."""
        self._anchor = self._known = self._later = None
        self.progress = Progress()

    # --- local steps -------------------------------------------------------------------------------------

    def train(self, assignment: Assignment, first_step: int, done: int, steps: int) -> None:
        """Steps [done, done + steps) of an assignment. `first_step` is where the schedule stood before."""
        batch, first = assignment.batch, assignment.data.start + done * assignment.batch
        if self.privately is not None:
            for number in range(done, done + steps):
                tokens = self.privately.train(self.trainer, assignment, first_step, number)
                start = assignment.data.start + number * batch
                # No loss: it is not noised, and would tell of the samples.
                self.progress.add(0.0, batch, tokens, start, begins=number == 0)
            return
        # Drawing all at once is cheaper.
        drawn = sample_indices(self._recipe.seed, first, steps * batch, self._items)
        for number in range(done, done + steps):
            start = assignment.data.start + number * batch
            indices = drawn[start - first : start - first + batch]
            result = self.trainer.step(indices, first_step + number)
            self.progress.add(result.loss, result.samples, result.tokens, start, begins=number == 0)

    def make_update(
        self,
        fragments: tuple[int, ...],
        round_number: int = 0,
        place: int = 0,
        base: State | None = None,
        shards: int = 0,
        thin: int = 1,
        choice: int = 0,
    ) -> MadeUpdate:
        """Encode what was trained since the last claim, for work planned when `place` seals stood and `base` was the
        state; by fragment, or in about `shards` parts; with one in `thin` of the values that the codec chooses, where
        it does; by the recipe's codec of the number `choice`. Raises SH-CODEC-01 if it is not finite."""
        if self._anchor is None or self._known is None:
            raise AssertionError("an update before any state")
        live, codec = self.trainer.params().detach(), self._rules.codec_at(place, choice)
        if thin > 1 and isinstance(codec, SparseCodec):
            codec = codec.thinned(thin)
        spans = self._spans(fragments, shards)
        whole = [(start, stop) for _, start, stop in spans] == [(0, live.numel())]
        local, anchor = (live, self._anchor) if whole else (live.clone(), self._anchor.clone())
        residual, parts = self._residual, []
        if self._feedback and residual is None:
            residual = torch.zeros_like(local)
        hide = self._hiding(spans)
        for index, start, stop in spans:
            part = slice(start, stop)
            here = Here(local=local[part], anchor=anchor[part], known=self._known[part])
            made = self._merge.make(here)
            update = self._outgoing(hide(made.update), index, part, base)
            seed = _seed(self._recipe.seed, round_number, f"{index}/{start}" if shards else str(index))
            if residual is None:
                payload = codec.encode(update, seed)
            else:
                payload, left = encode_with_feedback(
                    codec, update, residual[part], seed, self._decay, spent=True
                )
                if whole:
                    residual = left
                else:
                    residual[part] = left
            parts.append((index, payload))
            if whole:
                local, anchor = made.local, _apart(made.local, live)
            else:
                local[part] = anchor[part] = made.local
        if local.data_ptr() != live.data_ptr():
            self.trainer.load(local)
        self._anchor, self._residual = anchor, residual
        self._place, self._shards, self._codec = place, shards, choice
        progress, self.progress = self.progress, Progress()
        blob = join_parts([payload for _, payload in parts]) if shards else encode_update(parts)
        return MadeUpdate(blob=blob, progress=progress)

    def _hiding(self, spans: tuple[Span, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
        """What clips and noises the parts of the next update, where whole updates are private: before anything else
        sees them, the residual too."""
        if self.privately is None or self.privately.by_sample or self._anchor is None or self._known is None:
            return _as_it_is
        local, anchor, known = self.trainer.params().detach(), self._anchor, self._known
        heres = (Here(local=local[a:b], anchor=anchor[a:b], known=known[a:b]) for _, a, b in spans)
        return self.privately.hiding(self._merge.make(here).update for here in heres)

    def _spans(self, fragments: tuple[int, ...], shards: int) -> tuple[Span, ...]:
        """What is encoded by itself: every fragment, or every shard of them."""
        layout = self.trainer.layout
        if shards:
            return cut(layout, fragments, shards)
        return tuple((i, layout.fragments[i].start, layout.fragments[i].stop) for i in fragments)

    def _outgoing(self, update: torch.Tensor, index: int, part: slice, base: State | None) -> torch.Tensor:
        """What is sent for an update: itself, or what the outer optimiser makes of it."""
        if self._prepare is None:
            return update
        if base is None:
            raise AssertionError("an update without the state that it is for")
        slots = {name: vector[part] for name, vector in base.slots.items()}
        return self._prepare.outgoing(update, slots, base.taken(index))

    def private_state(self) -> PrivateState:
        """The state after the update that was just made."""
        before, data = self._local_hash, self.local_state()
        self._local_hash = private_id(data)
        return PrivateState(data=data, before=before, after=self._local_hash)

    def commit(self) -> bytes:
        """The private state that the next update begins from, by whose id the claim will be bound to it."""
        data = self.local_state()
        self._local_hash = private_id(data)
        return data

    # --- what became of updates --------------------------------------------------------------------------

    def sent(self, claim: Unsettled) -> None:
        """The update that was made last has a claim, of which the log will say what becomes of it."""
        self._last_sent = claim.sequence
        self._anchor_of = -1 if self._anchor is None else claim.sequence
        if self._takes_back:
            placed = msgspec.structs.replace(claim, place=self._place, shards=self._shards, codec=self._codec)
            self.unsettled = (*self.unsettled, placed)[-MAX_UNSETTLED:]

    def settle(self, fates: Mapping[int, bool | None], read: Callable[[BlobId], bytes]) -> None:
        """Take back into the residual what claims had that came to nothing (False by sequence), and forget those
        that were accepted (True). Durable with the next claim, as one: a crash before it finds both undone."""
        if self._residual is None:
            return
        waiting = []
        for claim in self.unsettled:
            fate = fates.get(claim.sequence)
            if fate is None:
                waiting.append(claim)
            elif not fate:
                self._take_back(claim, self._residual, read)
        self.unsettled = tuple(waiting)

    def _take_back(self, claim: Unsettled, residual: torch.Tensor, read: Callable[[BlobId], bytes]) -> None:
        layout, codec = self.trainer.layout, self._rules.codec_at(claim.place, claim.codec)
        try:
            blob = read(claim.blob)
        except (FileNotFoundError, ShoalError):
            return  # The disk has lost it; so has the run.
        if not claim.shards:
            _accumulate(open_update(blob, layout, claim.fragments, codec) or {}, layout, 1.0, residual)
            return
        for (_, start, stop), source in open_cut(blob, layout, claim.fragments, codec, claim.shards):
            _add(source, 1.0, residual[start:stop])

    # --- evaluation, and the private state ----------------------------------------------------------------

    def evaluate(self, params: torch.Tensor) -> float:
        """Validation loss of a global version, whatever the local model is doing."""
        local = self.trainer.params().clone()
        self.trainer.load(params)
        loss = self.trainer.evaluate(self._recipe.evaluation.batches)
        self.trainer.load(local)
        return loss

    def local_state(self) -> bytes:
        # Viewed, not copied: it is as long as the model.
        residual = (
            b"" if self._residual is None else cast("bytes", self._residual.cpu().numpy().data.cast("B"))
        )
        salt = self.privately.salt() if self.privately is not None else b""
        return msgspec.msgpack.encode(
            _Local(
                trainer=self.trainer.local_state(),
                residual=residual,
                unsettled=self.unsettled,
                place=self._place,
                shards=self._shards,
                salt=salt,
                codec=self._codec,
            )
        )

    def load_local_state(self, data: bytes) -> None:
        """Go on from an earlier `local_state`. Raises SH-DISK-02, and loads nothing, if it is damaged."""
        try:
            local = msgspec.msgpack.decode(data, type=_Local)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _damaged() from None
        if local.residual and len(local.residual) != 4 * self.trainer.layout.numel:
            raise _damaged()
        self.trainer.load_local_state(local.trainer)
        if local.residual:
            kept = torch.frombuffer(bytearray(local.residual), dtype=torch.float32)
            self._residual = kept.to(self.trainer.params().device)
        self.unsettled, self._place, self._shards = local.unsettled, local.place, local.shards
        self._codec = local.codec
        self._local_hash = private_id(data)


def _as_it_is(update: torch.Tensor) -> torch.Tensor:
    return update


def private_id(data: bytes) -> BlobId:
    """How claims name a private state: as the blob that it is for those who may ask for it."""
    return chunk_list(data).blob


def _accumulate(opened: Mapping[int, Source], layout: Layout, factor: float, out: torch.Tensor) -> None:
    """Add an update's values, by fragment, to a flat vector."""
    for index, source in opened.items():
        _add(source, factor, out[layout.fragments[index].start : layout.fragments[index].stop])


def _add(source: Source, factor: float, out: torch.Tensor) -> None:
    for start in range(0, out.numel(), CHUNK):
        stop = min(start + CHUNK, out.numel())
        source.accumulate(start, stop, factor, out[start:stop], torch.empty_like(out[start:stop]))


def _joined(older: Global, newer: Global) -> Global:
    """The newer version, as seen from before the older one."""
    if older.fragments is None or newer.fragments is None:
        return Global(params=newer.params, position=newer.position)
    touched: Iterable[int] = sorted({*older.fragments, *newer.fragments})
    return Global(params=newer.params, position=newer.position, fragments=tuple(touched))


def _seed(seed: int, round_number: int, fragment: str) -> int:
    """What a codec draws from: the same for all nodes of a round."""
    return int(digest(f"shoal/codec/{seed}/{round_number}/{fragment}".encode())[:15], 16)


def _damaged() -> ShoalError:
    return ShoalError(
        "SH-DISK-02", "this node's saved optimiser state is damaged", "it starts with a fresh one"
    )


def _apart(values: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """The same values, where training does not change them."""
    return copy_of(values) if values.data_ptr() == live.data_ptr() else values
