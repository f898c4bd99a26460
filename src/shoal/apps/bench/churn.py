"""What coming and going costs: a fleet of which a part is replaced every round and half is lost at once, against calm.

In flow a fleet's size and its churn; out flow both final losses and how rounds went. Invariant: coordinator, nodes, log
and fold are the product's own in virtual time; whoever goes is killed in mid-work, whoever comes is a stranger with an
empty disk; both runs have the same recipe, data and first state.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import torch

from shoal.apps.bench import calm
from shoal.apps.bench.converge.corpus import Corpus, read_corpus
from shoal.apps.progress import Bar, tracked
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.coordinator.service import CoordinatorService
from shoal.node.options import NodeOptions
from shoal.node.service import NodeService
from shoal.node.session import Invitation
from shoal.replica.state import State, state_hash
from shoal.runlog.entries import Entry, Plan, Seal
from shoal.strategy.recipe import Recipe, parse_recipe
from shoal.training.spec import OwnInnerSpec
from shoal.training.trainer import TorchTrainer
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.founding import TOKEN, identity_of
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop, hush

ALLOWED = 0.02
STEPS, STEP_S, DEADLINE_S = 10, 0.5, 30.0
AWAY_ROUNDS = 10
"""So many rounds after half the fleet was lost, as many strangers come."""
JUDGED = (64, 64)
"""Samples and batches that a model is judged by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    nodes: int = 10
    rounds: int = 200
    replaced: float = 0.2
    """The share of the fleet that is replaced in every round."""
    lost: float = 0.5
    """The share that is lost at once, half-way."""
    seed: int = 0


def measure(question: Question, say: Callable[[str], None]) -> dict[str, Any]:
    """Play both. Raises SH-RUN-01 if one comes to a standstill."""
    recipe = recipe_for(question)
    corpus = read_corpus(recipe.data)
    outcomes = []
    for churning in tracked((False, True), "runs"):
        what = f"{question.replaced:.0%} are replaced every round" if churning else "nobody comes or goes"
        say(f"{question.nodes} nodes, {question.rounds} rounds, {what}")
        outcomes.append(_play(question, recipe, corpus, churning=churning))
        say(f"loss {outcomes[-1].loss:.4f}")
    still, moving = outcomes
    gap = moving.loss / still.loss - 1
    late = sum(taken > DEADLINE_S for taken in moving.rounds_s)
    return {
        "nodes": question.nodes,
        "rounds": len(moving.rounds_s),
        "rounds_calm": len(still.rounds_s),
        "replaced_per_round": question.replaced,
        "lost_at_once": question.lost,
        "killed": moving.killed,
        "joined": moving.joined,
        "loss_calm": round(still.loss, 6),
        "loss_churn": round(moving.loss, 6),
        "gap": round(gap, 5),
        "allowed": ALLOWED,
        "deadline_s": DEADLINE_S,
        "rounds_beyond_deadline": late,
        "round_s_calm": round(sum(still.rounds_s) / len(still.rounds_s), 3),
        "round_s_churn": round(sum(moving.rounds_s) / len(moving.rounds_s), 3),
        "round_s_longest": round(max(moving.rounds_s), 3),
        "updates_per_round": round(moving.updates / len(moving.rounds_s), 2),
        "states_equal": moving.agree,
        "ok": gap <= ALLOWED and not late and len(moving.rounds_s) == question.rounds and moving.agree,
    }


def recipe_for(question: Question) -> Recipe:
    steps = question.rounds * STEPS
    values = {
        "name": "churn",
        "seed": question.seed,
        "model": {"kind": "mlp", "width": 64, "layers": 1},
        # Half of the samples judge, and weights decay much: a run then ends where the next one ends, to a hundredth.
        "data": {"source": "digits", "validation_fraction": 0.5},
        "inner": {
            "kind": "adamw",
            "lr": 0.006,
            "weight_decay": 1.0,
            "batch_size": 32,
            "schedule": "cosine",
            "total_steps": steps,
            "warmup_steps": max(1, steps // 10),
        },
        "strategy": {
            "preset": "local-sgd",
            "schedule": {"steps": STEPS},
            "codec": {"kind": "int8", "error_feedback": True},
            "seal": {"kind": "all-or-deadline", "deadline_s": DEADLINE_S},
        },
        "budget": {"rounds": question.rounds},
        "membership": {"min_nodes": question.nodes, "max_nodes": 10_000},
        "evaluation": {"every": 1_000_000},
    }
    return parse_recipe(json.dumps(values), environment={}, where="churn")


@dataclass(slots=True, kw_only=True)
class _Outcome:
    loss: float = 0.0
    rounds_s: list[float] = field(default_factory=list)
    updates: int = 0
    killed: int = 0
    joined: int = 0
    agree: bool = True


def _play(question: Question, recipe: Recipe, corpus: Corpus, *, churning: bool) -> _Outcome:
    hush()
    loop = SimLoop(question.seed, event_budget=calm.NO_END)
    churn = _Churn(loop, question, recipe, corpus, churning=churning)
    try:
        with churn.bar:
            return loop.run(churn.play())
    except BaseExceptionGroup as group:
        raise calm.innermost(group) from group


class _Churn:
    def __init__(
        self, loop: SimLoop, question: Question, recipe: Recipe, corpus: Corpus, *, churning: bool
    ) -> None:
        self._loop, self._question, self._recipe, self._corpus = loop, question, recipe, corpus
        self._churning = churning
        self._network = calm.CountedNetwork(loop)
        self._run = RunId(f"{question.seed:032x}")
        self._identity = identity_of(question.seed, calm.COORDINATOR)
        self._nodes: dict[str, tuple[SimHost, NodeService]] = {}
        self._outcome = _Outcome()
        self.bar = Bar()
        self._planned_ms = 0
        self._over = asyncio.Event()
        disk = SimDisk()
        calm.found(disk, self._run, self._calm_fleet())
        host = self._host(calm.COORDINATOR, disk)
        self._coordinator = CoordinatorService(host, self._identity, calm.WatchedLog(host, self._appended))
        self._spawn(host, self._coordinator.serve(), calm.COORDINATOR)

    async def play(self) -> _Outcome:
        for _ in range(self._question.nodes):
            self._join()
        await asyncio.wait_for(self._over.wait(), calm.STALLED_S * 100)
        await asyncio.sleep(60.0)  # Those who are there fold the last seal.
        return self._judged()

    # --- coming and going --------------------------------------------------------------------------------

    def _appended(self, entry: Entry) -> None:
        body = entry.body
        if isinstance(body, Plan) and not self._planned_ms:
            self._planned_ms = entry.time_ms
            if self._churning:
                self._spawn(self._network.hosts[calm.COORDINATOR], self._churn(body.round), "churn")
        if isinstance(body, Seal):
            self._outcome.rounds_s.append((entry.time_ms - self._planned_ms) / 1000)
            self._outcome.updates += len(body.accepted)
            self._planned_ms = 0
            self.bar.at(len(self._outcome.rounds_s), self._question.rounds, "rounds")
            if len(self._outcome.rounds_s) >= self._question.rounds:
                self._over.set()

    async def _churn(self, round_number: int) -> None:
        """Some go in the middle of their work, and as many come."""
        question, rng = self._question, self._loop.rng
        await asyncio.sleep(rng.random() * STEPS * STEP_S)
        half_way = round_number == question.rounds // 2
        share = question.lost if half_way else question.replaced
        names = sorted(self._nodes)
        for name in rng.sample(names, min(len(names) - 1, round(share * len(names)))):
            self._nodes.pop(name)[0].die()
            self._outcome.killed += 1
        wounded = question.rounds // 2 <= round_number < question.rounds // 2 + AWAY_ROUNDS
        wanted = question.nodes - round(question.lost * question.nodes) if wounded else question.nodes
        while len(self._nodes) < wanted:
            self._join()

    def _join(self) -> None:
        name = f"node-{self._outcome.joined}"
        self._outcome.joined += 1
        host = self._host(name, SimDisk())
        invitation = Invitation(
            coordinator=self._identity.node,
            addresses=(calm.COORDINATOR,),
            run=self._run,
            token=TOKEN,
            name=name,
        )
        options = NodeOptions(step_seconds=STEP_S, give_up_s=calm.STALLED_S)
        identity = identity_of(self._question.seed, name)
        node = NodeService(host, identity, invitation, lambda *_: self._trainer(), options)
        self._nodes[name] = (host, node)
        self._spawn(host, node.run(), name)

    # --- parts -------------------------------------------------------------------------------------------

    def _judged(self) -> _Outcome:
        states: list[State] = [node.state for _, node in self._nodes.values() if node.state is not None]
        view = self._coordinator.runs[self._run].machine.view
        there = [node for _, node in self._nodes.values() if node.machine.at == view.at]
        if not there or there[0].state is None:
            raise ShoalError("SH-RUN-01", "nobody has the final state", "try another --seed")
        final = there[0].state
        judge = self._trainer(JUDGED[0])
        judge.load(final.params)
        self._outcome.loss = judge.evaluate(JUDGED[1])
        hashes = {state_hash(node.state) for node in there if node.state is not None}
        self._outcome.agree = len(hashes) == 1 and bool(states)
        return self._outcome

    def _trainer(self, batch: int | None = None) -> TorchTrainer:
        recipe, corpus = self._recipe, self._corpus
        assert not isinstance(recipe.inner, OwnInnerSpec)
        inner = recipe.inner if batch is None else recipe.inner.model_copy(update={"batch_size": batch})
        device = torch.device("cpu")
        return TorchTrainer(recipe.model, inner, corpus.manifest, corpus.dataset, recipe.seed, device)

    def _calm_fleet(self) -> calm.Fleet:
        return calm.Fleet(
            recipe=self._recipe,
            manifest=self._corpus.manifest,
            make_trainer=self._trainer,
            computers=(),
            seed=self._question.seed,
        )

    def _host(self, name: str, disk: SimDisk) -> SimHost:
        node = identity_of(self._question.seed, name).node
        return SimHost(self._loop, self._network, name, 1, disk, node=node, link=calm.FAST, speed=1.0)

    def _spawn(self, host: SimHost, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._loop.spawn(host.owner, work, name)
