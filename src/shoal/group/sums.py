"""The hub's side of an update: the mean of what its members trained, from their sum.

In flow global states and masked sums; out flow pseudo-gradients of the whole group. Invariant: the hub's local model is
the state that its members began from, less the mean of their updates; it has trained nothing itself.
"""

from __future__ import annotations

import numpy as np
import torch

from shoal.base.ids import NodeId
from shoal.group.messages import Task
from shoal.node.learner import Learner
from shoal.node.progress import Progress
from shoal.runlog.entries import Assignment, DataRange
from shoal.runlog.work import Planned
from shoal.secagg.collector import Total
from shoal.secagg.fixed import FixedPoint, Words

EXTRA_NUMBERS = 1
"""Beside the update: the member's loss, which only its mean is known of."""
LOSS_SCALE = 1 / 16
"""So that a loss of sixteen times the limit still fits."""


class SumLearner(Learner):
    """Owns a trainer that never takes a step."""

    @property
    def base(self) -> torch.Tensor:
        """What members begin from."""
        if self._anchor is None:
            raise AssertionError("a round before any state")
        return self._anchor.detach().cpu().contiguous()

    def take(self, mean: torch.Tensor, progress: Progress) -> None:
        """The group has come this far from `base`."""
        assert self._anchor is not None
        self.trainer.load(self._anchor - mean.to(self._anchor.device))
        self.progress = progress


def words_of(fixed: FixedPoint, update: torch.Tensor, loss: float) -> Words:
    """A member's numbers: its update, then its loss."""
    both = torch.cat([update.detach().cpu().flatten(), torch.tensor([loss * LOSS_SCALE])])
    return fixed.encode(both)


def mean_of(fixed: FixedPoint, total: Total) -> tuple[torch.Tensor, float]:
    """The mean update of those in the sum, and their mean loss."""
    mean = fixed.decode_mean(np.ascontiguousarray(total.words), len(total.survivors))
    return mean[:-EXTRA_NUMBERS], float(mean[-1]) / LOSS_SCALE


def tasks_for(nodes: tuple[NodeId, ...], planned: Planned, base: Task) -> dict[NodeId, Task]:
    """The hub's steps, shared out: the same number for everybody (one more for the first), of samples of its own."""
    assignment, tasks, done = planned.assignment, {}, 0
    each, more = divmod(assignment.steps, len(nodes))
    for number, node in enumerate(nodes):
        steps = each + (number < more)
        start = assignment.data.start + done * assignment.batch
        tasks[node] = Task(
            base=base.base,
            base_bytes=base.base_bytes,
            round=base.round,
            first_step=base.first_step,
            data=DataRange(start, steps * assignment.batch),
            steps=steps,
            batch=assignment.batch,
        )
        done += steps
    return tasks


def assignment_of(node: NodeId, task: Task) -> Assignment:
    return Assignment(node=node, data=task.data, steps=task.steps, batch=task.batch)


def progress_of(
    total: Total, tasks: dict[NodeId, Task], planned: Planned, loss: float, tokens_a_sample: int
) -> Progress:
    """What those in the sum have trained, as work on the hub's assignment."""
    steps = sum(tasks[node].steps for node in total.survivors)
    samples = steps * planned.assignment.batch
    return Progress(
        steps=steps,
        samples=samples,
        tokens=samples * tokens_a_sample,
        loss_sum=loss * steps,
        last_loss=loss,
        data=[DataRange(planned.data.start, samples)],
    )
