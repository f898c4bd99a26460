"""Sealed blobs that nodes cannot get: when the coordinator looks for one itself, to undo its seal if nobody gives it.

In flow nodes' reports, who is live, and the time; out flow blobs to look for. Invariant: while anybody lives who should
have it, a blob is waited for through several leases; once all of them are gone, no longer.
"""

from __future__ import annotations

from shoal.base.ids import BlobId, NodeId
from shoal.coordinator.events import FetchBlob
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Membership
from shoal.wire.messages import Stuck

PATIENCE_LEASES = 3


class Missed:
    """What the nodes of one run wait for in vain."""

    def __init__(self, membership: Membership) -> None:
        self._patience_s = PATIENCE_LEASES * membership.lease_s
        self._since: dict[tuple[int, BlobId], float] = {}
        """By seal and blob, for how long some node has waited; until it was looked for."""

    def heard(self, view: RunView, message: Stuck, now: float) -> None:
        key = message.at, message.blob
        if message.seconds >= 0 and _look(view, *key) is not None:
            self._since[key] = min(self._since.get(key, now), now - message.seconds)

    def due(self, view: RunView, live: frozenset[NodeId], now: float) -> list[FetchBlob]:
        """What to look for now. Whoever still wants it afterwards says so again."""
        found = []
        for key, since in list(self._since.items()):
            look = _look(view, *key)
            gone = look is not None and bool(look.holders) and live.isdisjoint(look.holders)
            if look is None or gone or now - since >= self._patience_s:
                del self._since[key]
                found += [look] if look else []
        return found


def _look(view: RunView, at: int, blob: BlobId) -> FetchBlob | None:
    """A search for a blob of the seal at this position, if a node without it can get no further."""
    index = view.index_of(at)
    if index is None or at <= view.best_start().at:
        return None
    sources = view.path[index].sources
    return next((FetchBlob(at, *each, is_missed=True) for each in sources if each[0] == blob), None)
