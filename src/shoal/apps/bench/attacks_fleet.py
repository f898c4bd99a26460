"""A fleet in lockstep, some of it hostile: the nodes' own learners, codecs with error feedback, and the fold.

In flow a recipe and who attacks; out flows what the global model came to. Invariant: an attacker's lie goes through the
same learner, codec and residual as an honest update; what is left out is time and the network, so nobody is late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import blake3
import numpy as np
import torch
import torch.nn.functional as F

from shoal.adversary import Adversary, Attacker, Backdoor, Poisoner, Seen, lie_of, taught
from shoal.apps.bench.attacks_training import StackedTrainers
from shoal.apps.bench.converge.corpus import Corpus, read_corpus
from shoal.apps.bench.stacked import Row
from shoal.apps.progress import tracked
from shoal.base.errors import ShoalError
from shoal.codec.base import decode_whole
from shoal.data.assignment import sample_indices
from shoal.data.dataset import Batch
from shoal.node.learner import Global, Learner
from shoal.replica.fold import FoldRules, SealedBlob, fold
from shoal.replica.state import State, initial_state
from shoal.replica.update import open_update
from shoal.strategy.recipe import Recipe
from shoal.wire.signed import digest

_VALIDATED = 1024
"""Samples that a model is judged by, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The global model after the last round, on the validation samples."""

    loss: float
    accuracy: float
    """The share of targets (classes, or next tokens) that it finds most likely."""
    backdoor: float | None
    """The share of other classes' samples that the trigger turns into the target; None without a backdoor."""
    void: int
    """Updates that the codec would not send, or that nobody could open."""


@dataclass(slots=True)
class _Node:
    learner: Learner
    attacker: Attacker | None = None
    sent: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attackers:
    """Who attacks, and how."""

    make: Callable[[], Attacker]
    count: int
    seed: int

    def among(self, nodes: int) -> list[Attacker | None]:
        """An attacker, or None, for every node: which ones attack is drawn."""
        drawn = sorted(range(nodes), key=lambda i: blake3.blake3(f"{self.seed}/{i}".encode()).digest())
        chosen = set(drawn[: self.count])
        return [self.make() if number in chosen else None for number in range(nodes)]


@dataclass(slots=True)
class Fleet:
    recipe: Recipe
    corpus: Corpus
    rules: FoldRules
    trainers: StackedTrainers
    nodes: list[_Node]
    seed: int
    state: State = field(init=False)
    void: int = 0

    def __post_init__(self) -> None:
        self.state = initial_state(self.trainers.layout, self.trainers.params[0], self.rules.slots)
        for node in self.nodes:
            node.learner.adopt(Global(params=self.state.params))

    def round(self, number: int) -> None:
        """Everybody trains, attackers look around and lie, everybody folds."""
        self._train(number)
        self._attack(number)
        blobs = [blob for node in self.nodes if (blob := self.publish(node, number)) is not None]
        updates = [SealedBlob(blob, 1, place=number) for blob in blobs]
        seed = digest(b"".join(digest(blob).encode() for blob in blobs))
        folded = fold(self.state, (0,), updates, self.rules, place=number, seed=seed)
        self.state, self.void = folded.state, self.void + len(folded.void)
        new = Global(params=self.state.params, position=number + 1, fragments=(0,))
        for node in self.nodes:
            node.learner.adopt(new)

    def _train(self, number: int) -> None:
        """The round's samples, cut into assignments as a plan would cut them, and a step of all on their next batch."""
        steps, size, nodes = (
            self.recipe.strategy.schedule.steps,
            self.trainers.inner.batch_size,
            len(self.nodes),
        )
        manifest, share = self.corpus.manifest, steps * size
        drawn = sample_indices(self.recipe.seed, number * nodes * share, nodes * share, manifest.train_items)
        for step in range(steps):
            indices = drawn.reshape(nodes, steps, size)[:, step]
            whole = self.corpus.dataset.batch(indices.reshape(-1))
            parts = map(Batch, torch.split(whole.inputs, size), torch.split(whole.targets, size))
            batches = [self._taught(node, part) for node, part in zip(self.nodes, parts, strict=True)]
            self.trainers.step(batches, number * steps + step)

    def _taught(self, node: _Node, batch: Batch) -> Batch:
        manifest = self.corpus.manifest
        classes = manifest.classes if manifest.kind == "arrays" else manifest.vocab_size
        return taught(node.attacker, batch, classes) if isinstance(node.attacker, Poisoner) else batch

    def _attack(self, number: int) -> None:
        updates = list(self.state.params - self.trainers.params)
        hostile = [i for i, node in enumerate(self.nodes) if node.attacker is not None]
        others = [update for node, update in zip(self.nodes, updates, strict=True) if node.attacker is None]
        for member, place in enumerate(hostile):
            node = self.nodes[place]
            if not isinstance(node.attacker, Adversary):
                continue
            seen = Seen(
                round=number,
                nodes=len(self.nodes),
                attackers=len(hostile),
                member=member,
                others=others,
                allies=[updates[i] for i in hostile],
                sent=node.sent,
                seed=self.seed,
            )
            lie = lie_of(node.attacker, updates[place], seen)
            # The model that this update would have come from: the learner then sends it as any other.
            self.trainers.params[place].copy_(self.state.params - lie)

    def publish(self, node: _Node, number: int) -> bytes | None:
        try:
            blob = node.learner.make_update((0,), number, number, self.state).blob
        except ShoalError:
            self.void += 1
            return None
        if node.attacker is not None:
            opened = open_update(blob, self.state.layout, (0,), self.rules.codec_at(number))
            node.sent = decode_whole(opened[0], self.state.layout.numel) if opened else None
        return blob


def train(recipe: Recipe, nodes: int, attackers: Attackers | None) -> Outcome:
    """Train a fleet to the end of its budget."""
    fleet = make_fleet(recipe, nodes, attackers)
    for number in tracked(range(recipe.budget.rounds or 1), "rounds"):
        fleet.round(number)
    return _judge(fleet, attackers)


def make_fleet(recipe: Recipe, nodes: int, attackers: Attackers | None) -> Fleet:
    corpus, rules = read_corpus(recipe.data), recipe.strategy.fold_rules()
    hostile = attackers.among(nodes) if attackers else [None] * nodes
    trainers = StackedTrainers(recipe, corpus, nodes)
    members = []
    for number, attacker in enumerate(hostile):
        learner = Learner(Row(trainers, number), recipe, corpus.manifest.train_items)
        members.append(_Node(learner, attacker))
    return Fleet(recipe, corpus, rules, trainers, members, attackers.seed if attackers else 0)


def _judge(fleet: Fleet, attackers: Attackers | None) -> Outcome:
    dataset, made = fleet.corpus.dataset, attackers.make() if attackers else None
    samples = min(dataset.validation_items, _VALIDATED)
    inputs, targets = dataset.batch(np.arange(samples), "validation")
    logits = fleet.trainers.guess(fleet.state.params, inputs)
    backdoor = None
    if isinstance(made, Backdoor):
        marked = made.trigger(inputs[targets != made.target])
        answers = fleet.trainers.guess(fleet.state.params, marked).argmax(dim=-1)
        backdoor = float((answers == made.target).float().mean())
    return Outcome(
        loss=float(F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))),
        accuracy=float((logits.argmax(dim=-1) == targets).float().mean()),
        backdoor=backdoor,
        void=fleet.void,
    )
