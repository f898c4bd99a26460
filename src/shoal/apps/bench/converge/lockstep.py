"""The fleet in lockstep on one device: the nodes' own learners and the fold, without a network between them.

In flows a setup whose rounds wait for everybody; out flows what came of it. Invariant: learners, codecs, aggregator,
outer optimiser and schedule are those of the nodes; what is left out is time, so nobody is ever late, and wire bytes
are the updates' own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from shoal.apps.bench.converge.fleet import StackedFleet, check_finite
from shoal.apps.bench.converge.outcome import Outcome
from shoal.apps.bench.converge.setup import Say, Setup
from shoal.apps.bench.stacked import Row
from shoal.apps.progress import Bar
from shoal.data.assignment import sample_indices
from shoal.node.learner import Global, Learner, MadeUpdate
from shoal.replica.fold import SealedBlob, fold
from shoal.replica.state import State, initial_state
from shoal.runlog.view import RunView, Step, Totals
from shoal.strategy.planning import local_steps, outer_rate, planned_fragments
from shoal.training.spec import GptSpec

T = TypeVar("T")
SAY_EVERY_S = 5.0


def train(setup: Setup, say: Say) -> Outcome:
    """Train what `find_engine` lets through. Raises SH-TRAIN-01 or SH-CODEC-01 if it diverges."""
    fleet = _fleet(setup)
    state = initial_state(
        fleet.layout, fleet.params[0], setup.recipe.strategy.fold_rules().slots, setup.device
    )
    run = _Run(setup, fleet, say)
    with run.bar:
        while run.steps < setup.steps:
            state = run.round(state)
    updates = run.sent_bytes / setup.workers
    return Outcome(
        loss=fleet.evaluate(state.params, setup.recipe.evaluation.batches, setup.inner.batch_size),
        params=fleet.layout.numel,
        steps=run.steps,
        tokens=run.steps * setup.workers * setup.inner.batch_size * setup.corpus.sample_tokens,
        rounds=run.view.round,
        sent_bytes=updates,
        received_bytes=updates * (setup.workers - 1),
        wire_bytes=run.sent_bytes * (setup.workers - 1),
        wire_update_bytes=run.sent_bytes * (setup.workers - 1),
    )


def _fleet(setup: Setup) -> StackedFleet:
    corpus, model = setup.corpus, setup.recipe.model
    assert isinstance(model, GptSpec)
    return StackedFleet(
        model,
        setup.inner,
        corpus.manifest,
        corpus.dataset,
        setup.seed,
        setup.device,
        workers=setup.workers,
        fragments=setup.recipe.strategy.schedule.fragments,
    )


class _Run:
    """Rounds one after another, as the coordinator would plan them if everybody were always in time."""

    def __init__(self, setup: Setup, fleet: StackedFleet, say: Say) -> None:
        self.view = RunView()
        self.view.versions = [0] * len(fleet.layout.fragments)
        self.steps = 0
        """Inner steps of each worker that reached the global state."""
        self.sent_bytes = 0
        self.bar = Bar()
        self._setup, self._fleet, self._say, self._told = setup, fleet, say, time.monotonic()
        self._rules = setup.recipe.strategy.fold_rules()
        self._items = setup.corpus.manifest.train_items
        self._learners = [
            Learner(Row(fleet, number), setup.recipe, self._items) for number in range(setup.workers)
        ]
        for learner in self._learners:
            learner.adopt(Global(params=fleet.params[0].clone()))
        self._counter = self._carried = 0

    def round(self, state: State) -> State:
        """One round: local steps, updates, spare steps while they would travel, the fold, the merge."""
        schedule, before = self._setup.recipe.strategy.schedule, self.steps
        steps = min(local_steps(self._setup.recipe, self.view), self._setup.steps - before)
        fragments = planned_fragments(self._setup.recipe, self.view)
        own = max(1, steps - self._carried)
        reached = before + self._carried + own
        self._train(before, steps, range(own))
        place = self.view.round
        made = self._each(lambda learner: learner.make_update(fragments, place, place, state))
        self._train(before, steps, range(own, own + schedule.overlap))
        self._carried = schedule.overlap
        self._counter += self._share(steps) * self._setup.workers
        updates = [SealedBlob(update.blob, 1, place=place) for update in made]
        rate = outer_rate(self._setup.recipe, self.view)
        state = fold(state, fragments, updates, self._rules, rate=rate, place=place).state
        new = Global(params=state.params, position=self.view.round + 1, fragments=fragments)
        self._each(lambda learner: learner.adopt(new))
        self._sealed(reached, fragments, made)
        return state

    def _share(self, steps: int) -> int:
        """Samples of one worker's assignment."""
        return self._setup.inner.batch_size * (steps + self._setup.recipe.strategy.schedule.overlap)

    def _train(self, before: int, steps: int, numbers: range) -> None:
        """Steps of everybody's assignment, by their numbers in it."""
        batch, share = self._setup.inner.batch_size, self._share(steps)
        for number in numbers:
            starts = [self._counter + w * share + number * batch for w in range(self._setup.workers)]
            parts = [sample_indices(self._setup.seed, start, batch, self._items) for start in starts]
            losses = self._fleet.step(parts, before + number)
            self.bar.at(before + number + 1, self._setup.steps, "steps")
            if time.monotonic() - self._told > SAY_EVERY_S:
                self._told = time.monotonic()
                check_finite(losses, before + number)
                self._say(
                    f"{self._setup.preset}: round {self.view.round + 1}, step {before + number + 1} of "
                    f"{self._setup.steps}, loss {losses.mean().item():.3f}"
                )

    def _sealed(self, steps: int, fragments: tuple[int, ...], made: list[MadeUpdate]) -> None:
        self.steps = steps
        self.sent_bytes += sum(len(update.blob) for update in made)
        rounds = self.view.round + 1
        self.view.path.append(
            Step(rounds, self.view.round, fragments, (), totals=Totals(rounds=rounds, steps=steps))
        )
        self.view.round = rounds

    def _each(self, work: Callable[[Learner], T]) -> list[T]:
        """Every learner's part, in parallel: each has its own row."""
        with ThreadPoolExecutor(len(self._learners), thread_name_prefix="learner") as pool:
            return list(pool.map(work, self._learners))
