"""How far honest re-runs are from honest claims, when the hardware is not the same.

In flow settings of torch that round differently; out flow distances. Invariant: claim and re-run go through the nodes'
own learner and trainer, from the same state, private state and samples; nothing but the arithmetic differs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from shoal.apps.bench.attacks_setting import Cell, recipe_for, rule_of
from shoal.apps.bench.converge.corpus import read_corpus
from shoal.audit.comparing import distance
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.node.learner import Global, Learner
from shoal.node.replaying import borrowed, run_again
from shoal.replica.fold import FoldRules, SealedBlob, fold
from shoal.replica.state import State, initial_state
from shoal.runlog.entries import Assignment, Claim, DataRange, Head
from shoal.runlog.view import Update
from shoal.runlog.work import Planned
from shoal.strategy.recipe import Recipe
from shoal.training.spec import OwnInnerSpec
from shoal.training.trainer import TorchTrainer


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a claim is run again on."""

    name: str
    threads: int = 1
    onednn: bool = True
    parts: int = 1
    """Steps are added up from so many parts of a batch: other kernels, and another order of sums."""
    device: str = "cpu"
    every: int = 1
    """One claim in so many is run again on it."""
    first: int = 0
    """The first of those claims."""


HERE = Hardware("one thread")
OTHERS = (
    Hardware("without oneDNN", onednn=False, every=5),
    Hardware("halves of a batch", parts=2, every=5, first=1),
    Hardware("halves of a batch, without oneDNN", onednn=False, parts=2, every=5, first=2),
    Hardware("thirds of a batch", parts=3, every=5, first=3),
    Hardware("eighths of a batch", parts=8, every=5, first=4),
    Hardware("two threads", threads=2, every=50),
    Hardware("four threads", threads=4, every=50, first=25),
)
"""The first five in turn, so that every claim is run again and as many as possible are different ones; threads wait for
one another, up to fifty times as long as they work where cores are few and busy, and change little."""
CODECS = ("int8", "two-bit", "sparse")
MODELS = ("digits", "gpt")
PRECISIONS = ("fp32", "bf16")
RUN = 50
"""Claims of one run; more are of runs with other seeds, so that they are of all stages of training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Honest:
    """Distances of honest re-runs in one setting."""

    model: str
    codec: str
    precision: str
    hardware: str
    distances: tuple[float, ...]

    @property
    def largest(self) -> float:
        return max(self.distances, default=0.0)


def measure(
    model: str, codec: str, precision: str, others: tuple[Hardware, ...], claims: int
) -> list[Honest]:
    """So many claims of one node on this machine, each run again on other hardware."""
    found: dict[str, list[float]] = {hardware.name: [] for hardware in others}
    for seed, first in enumerate(range(0, claims, RUN)):
        recipe = _recipe(model, codec, precision, min(RUN, claims - first), seed)
        here = _Node(recipe, HERE)
        there = [(hardware, _Node(recipe, hardware)) for hardware in others]
        for number in range(min(RUN, claims - first)):
            base, private, update, blob = here.claim(number)
            for hardware, node in there:
                if number % hardware.every != hardware.first:
                    continue
                again = node.again(update, base, private)
                apart = distance(update, blob, again, base.layout, here.rules.codec_at(number))
                found[hardware.name].append(apart)
    return [
        Honest(model=model, codec=codec, precision=precision, hardware=name, distances=tuple(distances))
        for name, distances in found.items()
    ]


def _recipe(model: str, codec: str, precision: str, claims: int, seed: int) -> Recipe:
    cell = Cell(attack="", nodes=1, codec=codec, model=model, rounds=claims, seed=seed)
    recipe = recipe_for(cell, rule_of("mean"))
    return recipe.model_copy(update={"inner": recipe.inner.model_copy(update={"precision": precision})})


class _Node:
    """A node alone: it trains, claims, and folds its own updates."""

    def __init__(self, recipe: Recipe, hardware: Hardware) -> None:
        self.recipe, self._hardware = recipe, hardware
        corpus = read_corpus(recipe.data)
        self._items = corpus.manifest.train_items
        self.rules: FoldRules = recipe.strategy.fold_rules()
        with _on(hardware):
            assert not isinstance(recipe.inner, OwnInnerSpec)
            size = -(-recipe.inner.batch_size // hardware.parts)
            inner = recipe.inner.model_copy(update={"micro_batch": size})
            self._trainer = TorchTrainer(
                recipe.model,
                inner,
                corpus.manifest,
                corpus.dataset,
                recipe.seed,
                torch.device(hardware.device),
            )
        self._learner = Learner(self._trainer, recipe, self._items)
        self._state: State = initial_state(
            self._trainer.layout, self._trainer.params().cpu(), self.rules.slots
        )

    def claim(self, number: int) -> tuple[State, bytes, Update, bytes]:
        """The base, the private state, the claim and its update."""
        base, steps = self._state, self.recipe.strategy.schedule.steps
        batch = self.recipe.inner.batch_size
        with _on(self._hardware):
            self._learner.adopt(Global(params=base.params, position=number, fragments=(0,)))
            private = self._learner.commit()
            data = DataRange(number * steps * batch, steps * batch)
            work = Assignment(node=NodeId(""), data=data, steps=steps, batch=batch)
            self._learner.train(work, number * steps, 0, steps)
            blob = self._learner.make_update((0,), number, number, base).blob
        self._state = fold(base, (0,), [SealedBlob(blob, 1, place=number)], self.rules, place=number).state
        return base, private, _sealed(work, number, number * steps), blob

    def again(self, update: Update, base: State, private: bytes) -> bytes | None:
        with _on(self._hardware), borrowed(self._trainer):
            return run_again(self._trainer, self.recipe, self._items, update, base, private)


def _sealed(work: Assignment, number: int, step: int) -> Update:
    claim = Claim(
        run=RunId(""),
        node=work.node,
        sequence=number,
        round=number,
        plan=0,
        head=Head(0, ""),
        base=((0, number),),
        steps=work.steps,
        samples=work.data.count,
        tokens=0,
        data=(work.data,),
        local_before="",
        local_after="",
        blob=BlobId(""),
        size_bytes=0,
        loss=0.0,
    )
    planned = Planned(
        position=0,
        round=number,
        step=step,
        at=0,
        place=number,
        base=claim.base,
        weights="samples",
        time_ms=0,
        assignment=work,
    )
    return Update(claim, 1, (), place=number, work=planned)


@contextmanager
def _on(hardware: Hardware) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(hardware.threads)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # About other vendors' GPUs.
            with torch.backends.mkldnn.flags(enabled=hardware.onednn):
                yield
    finally:
        torch.set_num_threads(threads)
