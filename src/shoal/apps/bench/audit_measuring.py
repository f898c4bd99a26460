"""What audits see of honest and forged claims, from a fleet that really trains.

In flow a recipe; out flow, by round, the screener's scores of honest seals and of seals with one forged claim of each
kind, and how far each forgery is from what a re-run gives. Invariant: scores and looks are made by the code that nodes
run, from updates that went through the recipe's codec, by the trainer of one of the nodes; a forger knows all honest
updates of its round.

What is left out: the lies do not enter the global model (one of twenty hardly moves it), and go through the codec
without a residual.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat

import torch

from shoal.adversary import ATTACKS, Adversary, Poisoner, Seen
from shoal.apps.bench.attacks_fleet import Fleet, make_fleet
from shoal.apps.bench.attacks_training import StackedTrainers
from shoal.apps.progress import tracked
from shoal.audit.effects import Looking
from shoal.audit.screening import scores
from shoal.audit.spec import AuditSpec
from shoal.codec.base import decode_whole
from shoal.data.assignment import Indices, sample_indices
from shoal.data.dataset import Batch
from shoal.node.auditing import seals_remembered
from shoal.node.learner import Global
from shoal.node.looking import Assigned, looking
from shoal.replica.fold import SealedBlob, fold
from shoal.replica.update import open_update
from shoal.strategy.recipe import Recipe
from shoal.training.spec import OwnInnerSpec
from shoal.training.trainer import TorchTrainer

FORGERS = 4
"""So many of the nodes forge, each in games of its own."""
ELSEWHERE_EPOCHS = 1000
LAZY_SHARE = 5
"""A lazy node takes one in so many of its steps, and sends what comes of it as long as an honest update."""
KINDS = (*sorted(set(ATTACKS) - {"poisoned-feedback"}), "elsewhere", "lazy")
"""`elsewhere` trains as much as it says, on other samples than its own. Poisoned feedback is no one claim's doing."""


@dataclass(frozen=True, slots=True)
class Forged:
    """One round in which one node forges its claim."""

    scores: tuple[int, ...]
    distance: float
    """From the update that a re-run gives, as a share of the longer one."""


@dataclass(slots=True)
class Measured:
    """What was measured: by round, and for forgeries by kind, round and forger."""

    honest: list[tuple[int, ...]] = field(default_factory=list)
    forged: dict[str, list[list[Forged]]] = field(default_factory=dict)


def measure(recipe: Recipe, nodes: int, spec: AuditSpec) -> Measured:
    """Train a whole run of honest nodes, and forge every node's claim in every round, in every way, on the side."""
    bench = _Bench(recipe, nodes, spec)
    found = Measured(forged={kind: [] for kind in KINDS})
    for round_number in tracked(range(recipe.budget.rounds or 1), "rounds"):
        looking, rows, lies = bench.round(round_number)
        found.honest.append(scores(rows, bench.last, looking))
        for kind in KINDS:
            found.forged[kind].append(list(bench.forge(rows, lies[kind], looking)))
        bench.earlier.append(rows)
    return found


def forgers_of(nodes: int) -> tuple[int, ...]:
    return tuple(range(0, nodes, max(1, nodes // FORGERS)))[:FORGERS]


class _Bench:
    def __init__(self, recipe: Recipe, nodes: int, spec: AuditSpec) -> None:
        self.fleet: Fleet = make_fleet(recipe, nodes, None)
        remembered = seals_remembered(self.fleet.state.layout, repeat(nodes))
        self.earlier: deque[torch.Tensor] = deque(maxlen=remembered)
        self.forgers = forgers_of(nodes)
        self._spec = spec
        assert not isinstance(recipe.inner, OwnInnerSpec)
        corpus = self.fleet.corpus
        self._screener = TorchTrainer(
            recipe.model, recipe.inner, corpus.manifest, corpus.dataset, recipe.seed, torch.device("cpu")
        )
        """The last of the nodes, once more, by itself."""
        self._first: torch.Tensor | None = None
        self._beside = {
            kind: StackedTrainers(recipe, self.fleet.corpus, len(self.forgers))
            for kind in ("label-flip", "backdoor", "elsewhere")
        }

    @property
    def last(self) -> torch.Tensor | None:
        return self.earlier[-1] if self.earlier else None

    def round(self, number_: int) -> tuple[Looking, torch.Tensor, dict[str, torch.Tensor]]:
        """Everybody trains; looks at the assignments, the honest updates as they were sent, and by kind what each
        forger would send."""
        fleet, base = self.fleet, self.fleet.state.params.clone()
        lazy = self._train(number_, base)
        looking = self._looking(number_, base)
        updates = base - fleet.trainers.params
        lies = self._lies(number_, base, updates, lazy)
        blobs = [blob for node in fleet.nodes if (blob := fleet.publish(node, number_)) is not None]
        rows = torch.stack([self._values(blob, number_) for blob in blobs])
        sealed = [SealedBlob(blob, 1, place=number_) for blob in blobs]
        fleet.state = fold(fleet.state, (0,), sealed, fleet.rules, place=number_).state
        for node in fleet.nodes:
            node.learner.adopt(Global(params=fleet.state.params, position=number_ + 1, fragments=(0,)))
        return looking, rows, lies

    def forge(self, rows: torch.Tensor, lies: torch.Tensor, looking: Looking) -> Iterator[Forged]:
        for node, lie in zip(self.forgers, lies, strict=True):
            sent = rows.clone()
            sent[node] = lie
            longer = max(float(rows[node].norm()), float(sent[node].norm()), 1e-30)
            apart = float((rows[node] - sent[node]).norm()) / longer
            yield Forged(scores(sent, self.last, looking), apart)

    # --- training ------------------------------------------------------------------------------------------

    def _drawn(self, number_: int, epochs: int = 0) -> Indices:
        """Everybody's samples, by node and step; or as many of so many epochs later."""
        fleet, steps = self.fleet, self.fleet.recipe.strategy.schedule.steps
        size, nodes = fleet.trainers.inner.batch_size, len(fleet.nodes)
        whole, items = nodes * steps * size, fleet.corpus.manifest.train_items
        first = number_ * whole + epochs * items
        return sample_indices(fleet.recipe.seed, first, whole, items).reshape(nodes, steps, size)

    def _train(self, number_: int, base: torch.Tensor) -> torch.Tensor:
        """A round of everybody, and of those beside; what a lazy node would have by then."""
        fleet, drawn = self.fleet, self._drawn(number_)
        steps = drawn.shape[1]
        elsewhere = self._drawn(number_, epochs=ELSEWHERE_EPOCHS)[list(self.forgers)]
        lazy = base.expand_as(fleet.trainers.params)
        for trainers in self._beside.values():
            trainers.params.copy_(base)
        self._screener.load(base)
        for step in range(steps):
            whole = self._batches(drawn[:, step])
            fleet.trainers.step(whole, number_ * steps + step)
            self._screener.step(drawn[-1, step], number_ * steps + step)
            for kind, trainers in self._beside.items():
                own = [whole[node] for node in self.forgers]
                batches = (
                    self._batches(elsewhere[:, step]) if kind == "elsewhere" else self._poisoned(kind, own)
                )
                trainers.step(batches, number_ * steps + step)
            if step + 1 == max(1, steps // LAZY_SHARE):
                lazy = fleet.trainers.params.clone()
        return base - lazy

    def _batches(self, indices: Indices) -> list[Batch]:
        whole = self.fleet.corpus.dataset.batch(indices.reshape(-1))
        size = indices.shape[1]
        return list(map(Batch, torch.split(whole.inputs, size), torch.split(whole.targets, size)))

    def _poisoned(self, kind: str, batches: list[Batch]) -> list[Batch]:
        made, manifest = ATTACKS[kind](), self.fleet.corpus.manifest
        assert isinstance(made, Poisoner)
        classes = manifest.classes if manifest.kind == "arrays" else manifest.vocab_size
        return [made.poison(batch, classes) for batch in batches]

    # --- lies ----------------------------------------------------------------------------------------------

    def _lies(
        self, number_: int, base: torch.Tensor, updates: torch.Tensor, lazy: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        own = updates[list(self.forgers)]
        lazy = lazy[list(self.forgers)]
        if self._first is None:
            self._first = own.clone()
        scale = own.norm(dim=1, keepdim=True) / lazy.norm(dim=1, keepdim=True).clamp(min=1e-30)
        found = {kind: base - trainers.params for kind, trainers in self._beside.items()}
        found |= {"lazy": lazy * scale, "stale-replay": self._first}
        for kind in KINDS:
            if kind not in found:
                made = ATTACKS[kind]()
                assert isinstance(made, Adversary)
                lies = [
                    made.corrupt(updates[node], self._seen(number_, node, updates)) for node in self.forgers
                ]
                found[kind] = torch.stack(lies)
        return {kind: self._through(lies, number_) for kind, lies in found.items()}

    def _seen(self, number_: int, node: int, updates: torch.Tensor) -> Seen:
        return Seen(
            round=number_,
            nodes=len(updates),
            attackers=1,
            member=0,
            others=[update for other, update in enumerate(updates) if other != node],
            allies=[updates[node]],
            sent=None,
            seed=self.fleet.seed,
        )

    def _through(self, lies: torch.Tensor, number_: int) -> torch.Tensor:
        """What is left of them in the codec."""
        codec, numel = self.fleet.rules.codec_at(number_), self.fleet.state.layout.numel
        rows = []
        for lie in lies:
            source = codec.open(memoryview(codec.encode(lie, number_)), numel)
            assert source is not None
            rows.append(decode_whole(source, numel))
        return torch.stack(rows)

    def _values(self, blob: bytes, number_: int) -> torch.Tensor:
        layout = self.fleet.state.layout
        opened = open_update(blob, layout, (0,), self.fleet.rules.codec_at(number_))
        assert opened is not None
        return decode_whole(opened[0], layout.numel)

    # --- looking -------------------------------------------------------------------------------------------

    def _looking(self, number_: int, base: torch.Tensor) -> Looking:
        """Looks at each assignment from the state before the round, with the memory of a node that trained in it."""
        drawn = self._drawn(number_).reshape(len(self.fleet.nodes), -1)
        claims = [
            Assigned(author=str(node), count=len(own), at=own.__getitem__) for node, own in enumerate(drawn)
        ]
        self._screener.load(base)
        seed = f"{self.fleet.seed}/{number_}"
        return looking(self._screener, self._spec, claims, self.earlier, torch.Tensor.clone, seed)
