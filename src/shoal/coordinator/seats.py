"""Who is here now: connections, leases, and how far each node has come. Nothing of this is in the log.

In flow arrivals, heartbeats and losses with the time; out flow the live, the ready and their addresses.
Invariant: a node is live until its lease runs out, and a broken connection only shortens the lease.
"""

from __future__ import annotations

import math
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
    beats: int = 0
    """How many there were on this connection."""
    paused: bool = False
    min_price_micro: int = 0
    """For less than this a unit of work it is not to be planned."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What all seats came to at a moment: it holds until the first lease runs out, unless somebody comes or goes."""

    at: float
    until: float
    live: frozenset[NodeId]
    awaited: frozenset[NodeId]
    reachable: tuple[tuple[NodeId, str], ...]


class Seats:
    def __init__(self, membership: Membership, lag_allowed: float = LAG_ALLOWED) -> None:
        self._membership = membership
        self._lag_allowed = lag_allowed
        self.by_node: dict[NodeId, Seat] = {}
        self.touched: set[NodeId] = set()
        """Whose seats changed, for those who show them; whoever has shown them clears it."""
        self.moves = 0
        """Rises whenever somebody comes, goes or rests."""
        self._look: _Look | None = None
        self._ready: tuple[_Look, int, list[NodeId]] | None = None
        """Who was ready, by that look and with the run's state at that seal."""

    def expect(self, node: NodeId, now: float) -> None:
        """After a restart: a planned member gets one lease to come back."""
        seat = Seat(node, "", "", now + self._membership.lease_s, connected=False)
        self._seat(seat)

    def arrived(self, node: NodeId, name: str, address: str, now: float, *, min_price_micro: int = 0) -> None:
        old = self.by_node.get(node)
        at = old.at if old else -1
        seat = Seat(node, name, address, now + self._membership.lease_s, at=at)
        seat.min_price_micro = min_price_micro
        self._seat(seat)

    def _seat(self, seat: Seat) -> None:
        self.by_node[seat.node] = seat
        self._changed(seat.node)

    def _changed(self, *nodes: NodeId) -> None:
        self.touched.update(nodes)
        self.moves += 1
        self._look = None

    def heard(self, node: NodeId, now: float) -> bool:
        """Renew the lease. False if this node has no seat."""
        seat = self.by_node.get(node)
        if seat is None or not seat.connected:
            return False
        seat.lease_until = now + self._membership.lease_s
        if self._look is not None and node not in self._look.live:
            self._look = None
        return True

    def beat(self, node: NodeId, message: Heartbeat) -> bool:
        """Take what a node says of itself; whether any of it may change who is given work."""
        seat = self.by_node[node]
        news = self._look is None or (seat.at, seat.paused) != (message.at, message.paused)
        if seat.paused != message.paused:
            self._look = None
        if seat.at != message.at:
            self._ready = None
        seat.last_beat, seat.at, seat.paused = message, message.at, message.paused
        seat.beats += 1
        self.touched.add(node)
        return news

    def rest(self, resting: bool) -> None:
        """Everybody rests, or those alone who want to."""
        for seat in self.by_node.values():
            seat.paused = resting or bool(seat.last_beat and seat.last_beat.paused)
        self._changed(*self.by_node)

    def reached(self, node: NodeId, at: int) -> None:
        seat = self.by_node[node]
        if at > seat.at:
            seat.at, self._ready = at, None
            self.touched.add(node)

    def lost(self, node: NodeId, now: float) -> None:
        seat = self.by_node.get(node)
        if seat is not None:
            seat.connected = False
            seat.lease_until = min(seat.lease_until, now + self._membership.reconnect_s)
            self._changed(node)

    def left(self, node: NodeId) -> None:
        self.by_node.pop(node, None)
        self._changed(node)

    def live(self, now: float) -> frozenset[NodeId]:
        return self._looked(now).live

    def awaited(self, now: float) -> frozenset[NodeId]:
        """Live nodes that are at work."""
        return self._looked(now).awaited

    def reachable(self, now: float) -> tuple[tuple[NodeId, str], ...]:
        """Live, connected nodes that serve blobs, with their addresses, sorted."""
        return self._looked(now).reachable

    def ready(self, now: float, view: RunView) -> list[NodeId]:
        """Connected live nodes that have the current state or are a few folds away from it, sorted. Those a few
        folds away are waited for, or a node on a slow link would never catch up with quick rounds."""
        look = self._looked(now)
        if self._ready is None or self._ready[0] is not look or self._ready[1] != view.at:
            seats, close = self.by_node.values(), {at: self._is_close(at, view) for at in self._places()}
            found = (s.node for s in seats if s.connected and s.node in look.awaited and close[s.at])
            self._ready = (look, view.at, sorted(found))
        return list(self._ready[2])

    def _looked(self, now: float) -> _Look:
        """All seats at this moment. Thousands of heartbeats change nothing that is read here but leases' ends."""
        look = self._look
        if look is None or not look.at <= now < look.until:
            live = [seat for seat in self.by_node.values() if seat.lease_until > now]
            served = ((seat.node, seat.address) for seat in live if seat.connected and seat.address)
            look = self._look = _Look(
                at=now,
                until=min((seat.lease_until for seat in live), default=math.inf),
                live=frozenset(seat.node for seat in live),
                awaited=frozenset(seat.node for seat in live if not seat.paused),
                reachable=tuple(sorted(served)),
            )
        return look

    def _places(self) -> set[int]:
        """Where on the path nodes stand: few places, however many nodes."""
        return {seat.at for seat in self.by_node.values()}

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
