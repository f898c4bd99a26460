"""A claim run again: from the state that its plan stood on and the private state that it committed to.

In flow a sealed claim, that state and that private state; out flows the update that honest work gives. Invariant: on
one machine and thread count it is the very blob that was claimed; the trainer is left as it was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from shoal.audit.docket import replayable
from shoal.base.errors import ShoalError
from shoal.node.learner import Global, Learner
from shoal.replica.state import State
from shoal.runlog.entries import Assignment, DataRange
from shoal.runlog.view import Update
from shoal.strategy.recipe import Recipe
from shoal.training.trainer import Trainer


@contextmanager
def borrowed(trainer: Trainer) -> Iterator[None]:
    """Do something else with a trainer, and bring it back to where it was."""
    params, local = trainer.params().detach().clone(), trainer.local_state()
    try:
        yield
    finally:
        trainer.load(params)
        trainer.load_local_state(local)


def run_again(
    trainer: Trainer, recipe: Recipe, items: int, update: Update, base: State, private: bytes
) -> bytes | None:
    """The blob that this claim's work gives; None where it gives none. Raises SH-DISK-02 if the private state is none
    of this recipe's. `items` is the number of training samples."""
    claim, work = update.claim, update.work
    if work is None or replayable(update):
        return None
    learner = Learner(trainer, recipe, items)
    learner.load_local_state(private)
    learner.adopt(Global(params=base.params))
    try:
        for part in claim.data:
            # Work that was planned again goes on, on the samples of the later plan.
            learner.train(
                _beginning(work.assignment, part), work.step, 0, part.count // work.assignment.batch
            )
        fragments = tuple(index for index, _ in claim.base)
        how = (work.shards, work.assignment.thin, work.assignment.codec)
        return learner.make_update(fragments, claim.round, work.place, base, *how).blob
    except ShoalError:
        return None


def _beginning(assignment: Assignment, part: DataRange) -> Assignment:
    return msgspec.structs.replace(assignment, data=part)
