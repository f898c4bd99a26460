"""Whom this node meets in a seal, with both their updates.

In flow a seal and the log it stands in; out flows what the learner needs to go towards its partner's model. Invariant:
a partner's update that is not to be had in good time costs the meeting and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib

from shoal.base.ids import BlobId, NodeId
from shoal.node.learner import Met
from shoal.node.supply import Supply
from shoal.replica.fold import SealedBlob
from shoal.runlog.pairs import meeting_of
from shoal.runlog.view import RunView, Step
from shoal.strategy.recipe import Recipe

PATIENCE_SHARE = 4
"""An update is waited for by one part in so many of a round's longest time."""


async def fetch_meeting(
    view: RunView, step: Step | None, node: NodeId, supply: Supply, recipe: Recipe | None
) -> Met | None:
    """What became of this node's meeting in a seal; None if it has none there."""
    meeting = meeting_of(view, step, node) if step is not None else None
    if step is None or meeting is None or recipe is None:
        return None
    patience_s = recipe.strategy.seal_rule().deadline_s / PATIENCE_SHARE
    found: dict[BlobId, SealedBlob] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            for update in filter(None, (meeting.own, meeting.other)):
                blob = await supply.try_update(update)
                if blob is not None:
                    found[update.claim.blob] = SealedBlob(
                        blob, update.weight, place=update.place, codec=update.codec
                    )
    return Met(
        position=step.position,
        sequence=meeting.own.claim.sequence,
        fragments=step.fragments,
        mine=found.get(meeting.own.claim.blob),
        theirs=found.get(meeting.other.claim.blob) if meeting.other else None,
    )
