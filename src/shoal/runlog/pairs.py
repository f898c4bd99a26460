"""Rounds that leave the state as it is: who meets whom in them.

In flow a view and its seals; out flow pairs of updates. Invariant: the pairs are a function of the log alone, drawn
from the seal's own hash, so that anyone knows them once it is sealed and nobody can tell them before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.base.ids import NodeId
from shoal.runlog.view import RunView, Step, Update
from shoal.wire.signed import digest


@dataclass(frozen=True, slots=True)
class Meeting:
    """A node's own update in a seal, and its partner's; None for the odd one out."""

    own: Update
    other: Update | None


def matching(seal_hash: str, updates: Sequence[Update]) -> tuple[Meeting, ...]:
    """The pairs of a seal, each from both sides."""
    drawn = sorted(updates, key=lambda update: digest(f"shoal/pair/{seal_hash}/{update.claim.node}".encode()))
    met = [Meeting(drawn[-1], None)] if len(drawn) % 2 else []
    for one, two in zip(drawn[0::2], drawn[1::2], strict=False):
        met += [Meeting(one, two), Meeting(two, one)]
    return tuple(met)


def meeting_of(view: RunView, step: Step, node: NodeId) -> Meeting | None:
    """Whom a node meets in a seal; None if it does not, or if a later seal made it meaningless: the models have been
    averaged since, or the node has claimed again."""
    index = view.index_of(step.position)
    if not step.pairs or index is None:
        return None
    for later in view.path[index + 1 :]:
        if not later.pairs or any(update.claim.node == node for update in later.updates):
            return None
    met = matching(view.hashes[step.position], step.updates)
    return next((meeting for meeting in met if meeting.own.claim.node == node), None)


def pairs_since_fold(path: Sequence[Step], end: int | None = None) -> int:
    """How many seals in a row, up to the last (or up to the one before `end`), left the state as it was."""
    stop = len(path) if end is None else end
    count = 0
    while count < stop and path[stop - 1 - count].pairs:
        count += 1
    return count
