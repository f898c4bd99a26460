"""The local model between two claims: steps, merges, and the update that comes of them.

In flow global states and assignments; out flow pseudo-gradients as blobs. Invariant: an update is
`anchor - local`, encoded once; what the codec leaves out stays in the residual; every sample that entered the
update is named in its data ranges.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch

from shoal.base.errors import ShoalError
from shoal.codec import CODECS
from shoal.codec.feedback import encode_with_feedback
from shoal.data.assignment import sample_indices
from shoal.replica.update import encode_update
from shoal.runlog.entries import Assignment, DataRange
from shoal.strategy.recipe import Recipe
from shoal.training.trainer import Trainer
from shoal.wire.signed import digest

MAX_CARRIED = 4
"""Data ranges that unclaimed progress may have; a node that misses more rounds begins again."""


@dataclass(slots=True)
class Progress:
    """What was trained since the last claim."""

    steps: int = 0
    samples: int = 0
    tokens: int = 0
    loss_sum: float = 0.0
    last_loss: float = 0.0
    data: list[DataRange] | None = None

    def add(self, loss: float, samples: int, tokens: int, start: int, *, begins: bool) -> None:
        """Count a step. `begins` for an assignment's first: ranges of two assignments are never joined, though
        they may touch."""
        self.steps += 1
        self.samples += samples
        self.tokens += tokens
        self.loss_sum += loss
        self.last_loss = loss
        ranges = self.data = self.data or []
        if ranges and not begins and ranges[-1].start + ranges[-1].count == start:
            ranges[-1] = DataRange(ranges[-1].start, ranges[-1].count + samples)
        else:
            ranges.append(DataRange(start, samples))


class _Local(msgspec.Struct, frozen=True):
    trainer: bytes
    residual: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpdate:
    blob: bytes
    progress: Progress
    local_before: str
    local_after: str
    local: bytes
    """The private state to go on from, durable beside the claim."""


class Learner:
    """Owns a trainer. Not safe for concurrent use: one job at a time."""

    def __init__(self, trainer: Trainer, recipe: Recipe, train_items: int) -> None:
        self.trainer = trainer
        self.progress = Progress()
        self._recipe = recipe
        self._items = train_items
        self._codec = recipe.strategy.codec.make(CODECS)
        self._merge = recipe.strategy.merge_rule()
        self._anchor: torch.Tensor | None = None
        self._claimed: torch.Tensor | None = None
        self._residual: torch.Tensor | None = None
        self._local_hash = digest(trainer.local_state())

    def adopt(self, params: torch.Tensor) -> None:
        """Take a new global version, by the recipe's merge rule."""
        if self._anchor is None or self._claimed is None or len(self.progress.data or ()) >= MAX_CARRIED:
            self.progress = Progress()
            self.trainer.load(params)
            self._anchor = self._claimed = params
            return
        merged = self._merge.merge(self.trainer.params().cpu(), self._claimed, params)
        self.trainer.load(merged.local)
        self._anchor = self._claimed = merged.anchor
        if not self._merge.keeps_progress:
            self.progress = Progress()

    def forget(self) -> None:
        """The local model stands on a state that was undone: start from the next one, whole."""
        self._anchor = self._claimed = None
        self.progress = Progress()

    def train(self, assignment: Assignment, first_step: int, done: int, steps: int) -> None:
        """Steps [done, done + steps) of an assignment. `first_step` is where the schedule stood before."""
        for number in range(done, done + steps):
            start = assignment.data.start + number * assignment.batch
            indices = sample_indices(self._recipe.seed, start, assignment.batch, self._items)
            result = self.trainer.step(indices, first_step + number)
            self.progress.add(result.loss, result.samples, result.tokens, start, begins=number == 0)

    def make_update(self, fragments: tuple[int, ...]) -> MadeUpdate:
        """Encode what was trained since the last claim. Raises SH-CODEC-01 if it is not finite."""
        if self._anchor is None:
            raise AssertionError("an update before any state")
        local = self.trainer.params().detach().to("cpu", torch.float32, copy=True)
        update = self._anchor - local
        parts, residual = [], self._residual
        if self._recipe.strategy.codec.error_feedback and residual is None:
            residual = torch.zeros_like(update)
        for index in fragments:
            part = self.trainer.layout.fragments[index]
            values = update[part.start : part.stop]
            if residual is None:
                payload = self._codec.encode(values)
            else:
                kept = residual[part.start : part.stop]
                payload, left = encode_with_feedback(self._codec, values, kept)
                kept.copy_(left)
            parts.append((index, payload))
        self._residual, self._claimed = residual, local
        before, private = self._local_hash, self.local_state()
        self._local_hash = digest(private)
        progress, self.progress = self.progress, Progress()
        return MadeUpdate(
            blob=encode_update(parts),
            progress=progress,
            local_before=before,
            local_after=self._local_hash,
            local=private,
        )

    def evaluate(self, params: torch.Tensor) -> float:
        """Validation loss of a global version, whatever the local model is doing."""
        local = self.trainer.params().clone()
        self.trainer.load(params)
        loss = self.trainer.evaluate(self._recipe.evaluation.batches)
        self.trainer.load(local)
        return loss

    def local_state(self) -> bytes:
        residual = b"" if self._residual is None else self._residual.numpy().tobytes()
        return msgspec.msgpack.encode(_Local(self.trainer.local_state(), residual))

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
            self._residual = torch.frombuffer(bytearray(local.residual), dtype=torch.float32)
        self._local_hash = digest(data)


def _damaged() -> ShoalError:
    return ShoalError(
        "SH-DISK-02", "this node's saved optimiser state is damaged", "it starts with a fresh one"
    )
