"""What came of the demo's run, from its log and its blobs, and what one process would have made of the same data.

In flow the coordinator's home folder; out flow facts for the summary. Invariant: the single process trains the
same model with the same optimiser on as many tokens as the sealed updates hold, in batches as large as all nodes'
together, so each of its steps is what one step of all nodes in lockstep would be.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from shoal.apps.logs_checking import Replayed, replay_run, verified_view, verify_run
from shoal.apps.logs_reading import FoundLog, find_log
from shoal.base.ids import NodeId
from shoal.data.assignment import sample_indices
from shoal.data.dataset import open_dataset
from shoal.replica.state import decode_state
from shoal.runlog.chain import read_link
from shoal.runlog.entries import Genesis, Plan
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe, recipe_in_log
from shoal.training.export import export_huggingface
from shoal.training.spec import OwnInnerSpec
from shoal.training.trainer import TorchTrainer

EVALUATION_BATCHES = 64
PROMPT = "def "
SAMPLE_TOKENS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the log says of the run."""

    rounds: int
    steps: int
    """Local steps of all nodes that entered the model."""
    tokens: int
    parameters: int
    update_bytes: int
    missed: int
    """Rounds sealed without the node that was killed, since its first update."""
    repeated: int
    """Plans that had to be made again."""
    slowest_s: float
    """The longest time between two seals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    log: FoundLog
    view: RunView
    genesis: Genesis
    recipe: Recipe
    params: torch.Tensor


def open_finished(home: Path) -> Finished:
    """The run in this home, checked from the first entry to the last."""
    log = find_log(home, None, "", node=False)
    verify_run(log)
    view = verified_view(log)
    assert view.genesis is not None
    saved = view.best_start()
    data = log.blobs.read(saved.blob, 0, saved.size_bytes) or b""
    return Finished(
        log=log,
        view=view,
        genesis=view.genesis,
        recipe=recipe_in_log(view.genesis.recipe),
        params=decode_state(data, view.genesis.layout).params,
    )


def facts_of(finished: Finished, victim: str) -> Facts:
    view = finished.view
    claims = [update.claim for step in view.path for update in step.updates]
    node = next((member.node for member in view.members.values() if member.name == victim), NodeId(""))
    took_part = [node in {update.claim.node for update in step.updates} for step in view.path]
    since_first = took_part[took_part.index(True) :] if any(took_part) else []
    times = _seal_times_ms(finished)
    return Facts(
        rounds=view.steps_done,
        steps=sum(claim.steps for claim in claims),
        tokens=sum(claim.tokens for claim in claims),
        parameters=finished.genesis.layout.numel,
        update_bytes=sum(claim.size_bytes for claim in claims),
        missed=since_first.count(False),
        repeated=_repeated_plans(finished),
        slowest_s=max((b - a for a, b in itertools.pairwise(times)), default=0) / 1000,
    )


def _repeated_plans(finished: Finished) -> int:
    bodies = [read_link(encoded).entry.body for encoded in finished.log.entries]
    rounds = [body.round for body in bodies if isinstance(body, Plan)]
    return len(rounds) - len(set(rounds))


def _seal_times_ms(finished: Finished) -> list[int]:
    return [read_link(finished.log.entries[step.position]).entry.time_ms for step in finished.view.path]


def replayed(node_home: Path) -> Replayed:
    """The run folded anew from a node's own copy. Raises SH-LOG-05 if that is not what the nodes attested."""
    return replay_run(find_log(node_home, None, "", node=True), lambda progress: None)


# --- models ----------------------------------------------------------------------------------------------


def trainer_of(finished: Finished, *, batch_size: int | None = None) -> TorchTrainer:
    """A trainer of the run's model and data, at its beginning."""
    recipe, blobs = finished.recipe, finished.log.blobs
    assert not isinstance(recipe.inner, OwnInnerSpec)
    inner = recipe.inner.model_copy(update={"batch_size": batch_size}) if batch_size else recipe.inner
    manifest = finished.genesis.manifest
    dataset = open_dataset(manifest, lambda blob: blobs.read(blob, 0, blobs.size(blob) or 0) or b"")
    return TorchTrainer(recipe.model, inner, manifest, dataset, recipe.seed, torch.device("cpu"))


def validation_loss(trainer: TorchTrainer, batch_size: int) -> float:
    """Over the same samples, whatever the trainer's own batch."""
    return trainer.evaluate(max(1, EVALUATION_BATCHES * batch_size // trainer.batch_size))


def train_alone(
    finished: Finished, nodes: int, facts: Facts, on_step: Callable[[int, int, float], None]
) -> float:
    """One process on as many tokens; its validation loss."""
    size = finished.recipe.inner.batch_size
    trainer = trainer_of(finished, batch_size=size * nodes)
    items = finished.genesis.manifest.train_items
    total = max(1, facts.steps // nodes)
    pace = Pace()
    for step in range(total):
        indices = sample_indices(finished.recipe.seed, step * size * nodes, size * nodes, items)
        with pace:
            result = trainer.step(indices, step)
        on_step(step + 1, total, result.loss)
    return validation_loss(trainer, size)


class Pace:
    """Tries one thread and all cores for a few steps each, then keeps to the faster.

    Small matrices on busy cores lose more by waiting for one another than they gain.
    """

    TRIES = 5

    def __init__(self) -> None:
        self._choices = sorted({1, os.cpu_count() or 1})
        self._taken_s: dict[int, list[float]] = {threads: [] for threads in self._choices}
        self._began = 0.0

    def __enter__(self) -> None:
        untried = [threads for threads in self._choices if len(self._taken_s[threads]) < self.TRIES]
        best = min(self._choices, key=lambda threads: min(self._taken_s[threads], default=0.0))
        torch.set_num_threads(untried[0] if untried else best)
        self._began = monotonic()

    def __exit__(self, *_: object) -> None:
        taken = self._taken_s.get(torch.get_num_threads())
        if taken is not None and len(taken) < self.TRIES:
            taken.append(monotonic() - self._began)


def export_and_check(finished: Finished, folder: Path) -> str:
    """Write the model as a Hugging Face folder, load it again with `transformers`, and have it write a little."""
    tokenizer = finished.genesis.manifest.tokenizer
    data = finished.log.blobs.read(tokenizer, 0, 1 << 26) if tokenizer else None
    _quieten_transformers()
    export_huggingface(finished.recipe.model, finished.genesis.manifest, finished.params, data, folder)
    return sample_from(folder)


def _quieten_transformers() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


def sample_from(folder: Path) -> str:
    import transformers

    loaded: Any = transformers
    model = loaded.AutoModelForCausalLM.from_pretrained(folder)
    words = loaded.AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(7)
    window = model.config.max_position_embeddings
    ids = words(PROMPT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        for _ in range(SAMPLE_TOKENS):
            logits = model(ids[:, -window:]).logits[0, -1]
            draw = torch.multinomial(torch.softmax(logits / 0.7, dim=-1), 1)
            ids = torch.cat([ids, draw[None]], dim=1)
    text: str = words.decode(ids[0])
    return text
