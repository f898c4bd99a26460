"""What one node knows of the ways to its peers, from the traffic that it has anyway.

In flow requests as they begin and end, with their sizes; out flow round trips, their jitter, failures and rates.
Invariant: memory is bounded however many peers there are; a request that failed says nothing about speed.

A rate is that of all requests together while some are under way, since they share one line; the round trip that such
a stretch begins with is left out of it. What is too short to show a rate is taken for a round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.base.ids import NodeId
from shoal.measure.forecast import NEWS, Quantile, high, low

PROBE_BYTES = 4096
"""A request of no more than this is timed as a round trip."""
RATE_BYTES = 32 << 10
"""A stretch of less than this says nothing about a rate."""
STRETCH_S = 1.0
"""A stretch that goes on for so long gives a value, and begins anew."""
MAX_PEERS = 256
FAILED_NEWS = 0.1


@dataclass(slots=True)
class _Way:
    """To one peer."""

    rtt: Quantile = field(default_factory=low)
    jitter_s: float = 0.0
    failed: float = 0.0
    last_rtt_s: float | None = None

    def round_trip(self, seconds: float) -> None:
        if self.last_rtt_s is not None:
            self.jitter_s += NEWS * (abs(seconds - self.last_rtt_s) - self.jitter_s)
        self.last_rtt_s = seconds
        self.rtt.take(seconds)

    def ended(self, *, well: bool) -> None:
        self.failed += FAILED_NEWS * ((not well) - self.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFacts:
    """The way to one peer as it is expected to be."""

    node: NodeId
    rtt_s: float
    jitter_s: float
    failed: float
    """The share of requests that failed, lately."""


@dataclass(slots=True)
class Flow:
    """One direction of this node's line: bytes while something is under way."""

    rate: Quantile = field(default_factory=high)
    _under_way: int = 0
    _began: float = 0.0
    _bytes: int = 0
    _rtt_s: float = 0.0

    def begin(self, now: float, rtt_s: float) -> None:
        if not self._under_way:
            self._began, self._bytes, self._rtt_s = now, 0, rtt_s
        self._under_way += 1

    def end(self, now: float, size_bytes: int) -> None:
        self._under_way = max(0, self._under_way - 1)
        self._bytes += size_bytes
        if self._under_way and now - self._began < STRETCH_S:
            return
        took_s = now - self._began - self._rtt_s
        if self._bytes >= RATE_BYTES and took_s > 0:
            self.rate.take(self._bytes / max(took_s, 1e-4))
        self._began, self._bytes, self._rtt_s = now, 0, 0.0


class LinkMeter:
    """One node's ways. Tell it of every request."""

    def __init__(self) -> None:
        self.up, self.down = Flow(), Flow()
        self._ways: dict[NodeId, _Way] = {}

    def begin(self, node: NodeId, now: float, *, up: bool) -> None:
        (self.up if up else self.down).begin(now, self.rtt_s(node))

    def end(
        self, node: NodeId, began: float, now: float, size_bytes: int | None, *, up: bool, well: bool = True
    ) -> None:
        """It is over: so many bytes went, or None if it was not answered; `well` unless the way failed it."""
        way = self._way(node)
        way.ended(well=well)
        (self.up if up else self.down).end(now, size_bytes or 0)
        if size_bytes is not None and size_bytes <= PROBE_BYTES:
            way.round_trip(max(0.0, now - began))

    def round_trip(self, node: NodeId, seconds: float) -> None:
        """A probe of its own was answered."""
        way = self._way(node)
        way.round_trip(max(0.0, seconds))
        way.ended(well=True)

    def rtt_s(self, node: NodeId) -> float:
        """What is expected to a peer; 0 while unknown."""
        way = self._ways.get(node)
        return way.rtt.next() if way else 0.0

    def facts(self, nodes: Sequence[NodeId]) -> tuple[PeerFacts, ...]:
        """Of those that were measured."""
        found = [(node, self._ways[node]) for node in nodes if node in self._ways]
        return tuple(
            PeerFacts(node=node, rtt_s=way.rtt.next(), jitter_s=way.jitter_s, failed=way.failed)
            for node, way in found
            if way.rtt.known
        )

    def nodes(self) -> list[NodeId]:
        return sorted(self._ways)

    def failed(self) -> float:
        """The share of all requests that failed, lately."""
        ways = self._ways.values()
        return sum(way.failed for way in ways) / len(ways) if ways else 0.0

    def _way(self, node: NodeId) -> _Way:
        way = self._ways.get(node)
        if way is None:
            if len(self._ways) >= MAX_PEERS:
                del self._ways[next(iter(self._ways))]
            way = self._ways[node] = _Way()
        return way
