"""Who is here now: connections, leases, and how far each node has come. Nothing of this is in the log.

In flow arrivals, heartbeats and losses with the time; out flow the live, the ready and their addresses.
Invariant: a node is live until its lease runs out, and a broken connection only shortens the lease.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.base.ids import NodeId
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Membership
from shoal.wire.messages import Heartbeat

LAG_ALLOWED = 8
"""How many seals a node may be behind and still be planned, where a round waits for those it plans."""


@dataclass(slots=True)
class Seat:
    node: NodeId
    name: str
    address: str
    lease_until: float
    connected: bool = True
    at: int = -1
    last_beat: Heartbeat | None = None
    paused: bool = False
    min_price_micro: int = 0
    """For less than this a unit of work it is not to be planned."""


class Seats:
    def __init__(self, membership: Membership, lag_allowed: float = LAG_ALLOWED) -> None:
        self._membership = membership
        self._lag_allowed = lag_allowed
        self.by_node: dict[NodeId, Seat] = {}

    def expect(self, node: NodeId, now: float) -> None:
        """After a restart: a planned member gets one lease to come back."""
        seat = Seat(node, "", "", now + self._membership.lease_s, connected=False)
        self.by_node[node] = seat

    def arrived(self, node: NodeId, name: str, address: str, now: float, *, min_price_micro: int = 0) -> None:
        old = self.by_node.get(node)
        at = old.at if old else -1
        seat = Seat(node, name, address, now + self._membership.lease_s, at=at)
        seat.min_price_micro = min_price_micro
        self.by_node[node] = seat

    def heard(self, node: NodeId, now: float) -> bool:
        """Renew the lease. False if this node has no seat."""
        seat = self.by_node.get(node)
        if seat is None or not seat.connected:
            return False
        seat.lease_until = now + self._membership.lease_s
        return True

    def beat(self, node: NodeId, message: Heartbeat) -> None:
        seat = self.by_node[node]
        seat.last_beat, seat.at, seat.paused = message, message.at, message.paused

    def reached(self, node: NodeId, at: int) -> None:
        seat = self.by_node[node]
        seat.at = max(seat.at, at)

    def lost(self, node: NodeId, now: float) -> None:
        seat = self.by_node.get(node)
        if seat is not None:
            seat.connected = False
            seat.lease_until = min(seat.lease_until, now + self._membership.reconnect_s)

    def left(self, node: NodeId) -> None:
        self.by_node.pop(node, None)

    def live(self, now: float) -> frozenset[NodeId]:
        return frozenset(seat.node for seat in self.by_node.values() if seat.lease_until > now)

    def awaited(self, now: float) -> frozenset[NodeId]:
        """Live nodes that are at work."""
        seats = self.by_node.values()
        return frozenset(seat.node for seat in seats if seat.lease_until > now and not seat.paused)

    def ready(self, now: float, view: RunView) -> list[NodeId]:
        """Connected live nodes that have the current state or are a few folds away from it, sorted. Those a few
        folds away are waited for, or a node on a slow link would never catch up with quick rounds."""
        awaited = self.awaited(now)
        return sorted(
            s.node
            for s in self.by_node.values()
            if s.connected and s.node in awaited and self._is_close(s.at, view)
        )

    def _is_close(self, at: int, view: RunView) -> bool:
        index = -1 if at == 0 else view.index_of(at) if at > 0 else None
        return index is not None and len(view.path) - 1 - index < self._lag_allowed

    def step_s(self, view: RunView) -> float:
        """What one inner step takes the slowest of those at work, by their own word; 0 if nobody said."""
        context = view.genesis.manifest.context if view.genesis else 0
        seconds = [0.0]
        for node, plans in view.planned.items():
            beat = self.by_node[node].last_beat if node in self.by_node else None
            if beat is not None and beat.tokens_per_s > 0:
                batch = max(work.assignment.batch for work in plans.values())
                seconds.append(batch * max(1, context) / beat.tokens_per_s)
        return max(seconds)

    def reachable(self, now: float) -> tuple[tuple[NodeId, str], ...]:
        """Live, connected nodes that serve blobs, with their addresses, sorted."""
        seats = self.by_node.values()
        found = ((s.node, s.address) for s in seats if s.connected and s.address and s.lease_until > now)
        return tuple(sorted(found))
