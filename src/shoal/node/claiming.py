"""A node's word on an update that it has made.

In flow the work that was planned and what came of it; out flows the claim to sign. Invariant: everything in it is
durable on this node's disk before it leaves.
"""

from __future__ import annotations

from shoal.base.ids import BlobId
from shoal.node.learner import MadeUpdate, PrivateState
from shoal.node.machine import NodeMachine
from shoal.runlog.entries import Claim
from shoal.runlog.work import Planned


def claim_of(
    machine: NodeMachine, planned: Planned, made: MadeUpdate, private: PrivateState, blob: BlobId
) -> Claim:
    progress = made.progress
    return Claim(
        run=machine.view.run,
        node=machine.node,
        sequence=machine.next_sequence,
        round=planned.round,
        plan=planned.position,
        head=machine.view.head,
        base=planned.base,
        merges=tuple(progress.merges),
        steps=progress.steps,
        samples=progress.samples,
        tokens=progress.tokens,
        data=tuple(progress.data or ()),
        local_before=private.before,
        local_after=private.after,
        blob=blob,
        size_bytes=len(made.blob),
        loss=progress.loss_sum / max(1, progress.steps),
    )
