"""What the coordinator knows of every node: what they report, and what it sees of them itself.

In flow heartbeats, who is here, which updates came and what became of them; out flow `NodeFacts`, as they are expected
to be in the next round. Invariant: nothing of this is in the log; a plan that is made of it is, with its reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shoal.base.ids import NodeId
from shoal.measure.coordinates import Coordinates
from shoal.measure.forecast import NEWS, Forecast
from shoal.measure.reporting import believable
from shoal.wire.messages import Vitals

FIRST_HERE_S = 60.0
"""A node begins as if it had been here for so long."""
MAX_PAIRS = 65_536
EXPECTED = 0.01
"""A value that is off the forecast by no more than this share is no news."""
LOSS_ALLOWED = 1.5
"""An update whose loss is above the middle one's times this says that something is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node as it is expected to be next; 0 where nothing is known."""

    node: NodeId
    step_s: float = 0.0
    """What an inner step of `batch` samples takes it."""
    batch: int = 0
    rtt_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    failed: float = 0.0
    up_bytes_s: float = 0.0
    down_bytes_s: float = 0.0
    memory_bytes: int = 0
    uptime: float = 1.0
    """The share of the time since it first came in which it was here."""
    delivered: float = 1.0
    """The share of its work that came in time, lately."""
    quality: float = 1.0
    """Of its updates lately, what they were worth: 1 if all counted and none stood out."""


@dataclass(slots=True)
class _Seen:
    step: Forecast = field(default_factory=Forecast)
    rtt: Forecast = field(default_factory=Forecast)
    up: Forecast = field(default_factory=Forecast)
    down: Forecast = field(default_factory=Forecast)
    last: Vitals = field(default_factory=Vitals)
    here_s: float = FIRST_HERE_S
    away_s: float = 0.0
    delivered: float = 1.0
    quality: float = 1.0


_NOTHING = _Seen()
"""Of a node that said nothing; only read."""


class Telemetry:
    """One run's nodes."""

    def __init__(self) -> None:
        self.coordinates = Coordinates()
        self._seen: dict[NodeId, _Seen] = {}
        self._pairs: dict[tuple[NodeId, NodeId], float] = {}
        self._looked_at: float | None = None

    def heard(self, node: NodeId, vitals: Vitals, members: Collection[NodeId]) -> None:
        """A node's own word, bounded. What it says again, and is expected, is no news."""
        seen = self._of(node)
        before, told = seen.last, believable(vitals, members)
        if told.batch != before.batch:
            seen.step = Forecast()
        for series, value in (
            (seen.step, told.step_s),
            (seen.rtt, told.rtt_s),
            (seen.up, told.up_bytes_s),
            (seen.down, told.down_bytes_s),
        ):
            if value > 0 and abs(series.next() - value) > EXPECTED * value:
                series.take(value)
        seen.last = told
        for peer in told.peers:
            self._pair(node, peer.node, peer.rtt_s)

    def look(self, live: Collection[NodeId], now: float) -> None:
        """Who is here now: since the last look, they were."""
        passed_s = 0.0 if self._looked_at is None else max(0.0, now - self._looked_at)
        self._looked_at = now
        for node in live:
            self._of(node)
        for node, seen in self._seen.items():
            if node in live:
                seen.here_s += passed_s
            else:
                seen.away_s += passed_s

    def forget(self, node: NodeId) -> None:
        """It was never here."""
        self._seen.pop(node, None)
        self.coordinates.forget(node)

    def delivered(self, node: NodeId, in_time: bool) -> None:
        seen = self._of(node)
        seen.delivered += NEWS * (in_time - seen.delivered)

    def judged(self, losses: Mapping[NodeId, float], rejected: Collection[NodeId]) -> None:
        """What became of updates: the losses of those that counted, and whose did not."""
        ordered = sorted(losses.values())
        middle = ordered[len(ordered) // 2] if ordered else 0.0
        worth = {
            node: 1.0 if loss <= LOSS_ALLOWED * middle or loss <= 0 else LOSS_ALLOWED * middle / loss
            for node, loss in losses.items()
        }
        for node, value in {**worth, **dict.fromkeys(rejected, 0.0)}.items():
            seen = self._of(node)
            seen.quality += NEWS * (value - seen.quality)

    def facts(self, node: NodeId) -> NodeFacts:
        seen = self._seen.get(node, _NOTHING)
        told = seen.last
        return NodeFacts(
            node=node,
            step_s=seen.step.next(),
            batch=told.batch,
            rtt_s=seen.rtt.next(),
            jitter_s=told.jitter_s,
            loss=told.loss,
            failed=told.failed,
            up_bytes_s=seen.up.next(),
            down_bytes_s=seen.down.next(),
            memory_bytes=told.memory_bytes,
            uptime=seen.here_s / (seen.here_s + seen.away_s),
            delivered=seen.delivered,
            quality=seen.quality,
        )

    def all_facts(self, nodes: Collection[NodeId]) -> dict[NodeId, NodeFacts]:
        return {node: self.facts(node) for node in sorted(nodes)}

    def rtt_s(self, one: NodeId, two: NodeId) -> float | None:
        """Between two nodes: as one of them measured it, else by their network coordinates; None if unknown."""
        found = [self._pairs[pair] for pair in ((one, two), (two, one)) if pair in self._pairs]
        return min(found) if found else self.coordinates.expected_s(one, two)

    def _of(self, node: NodeId) -> _Seen:
        seen = self._seen.get(node)
        if seen is None:
            seen = self._seen[node] = _Seen()
        return seen

    def _pair(self, one: NodeId, two: NodeId, rtt_s: float) -> None:
        if rtt_s <= 0 or self._pairs.get((one, two)) == rtt_s:
            return
        if (one, two) not in self._pairs and len(self._pairs) >= MAX_PAIRS:
            del self._pairs[next(iter(self._pairs))]
        before = self._pairs.get((one, two), rtt_s)
        self._pairs[one, two] = before + NEWS * (rtt_s - before)
        self.coordinates.measured(one, two, rtt_s)
