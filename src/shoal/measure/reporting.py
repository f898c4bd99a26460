"""What a node tells the coordinator of itself and its ways, in a few numbers a heartbeat.

In flow a node's own measurements; out flow `Vitals` for the wire, and back again what may be believed of a stranger's.
Invariant: whatever a stranger sends, every number that comes out of `believable` is finite and within its bounds, and
there are few of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from shoal.base.ids import NodeId
from shoal.measure.forecast import Forecast
from shoal.measure.links import LinkMeter
from shoal.wire.messages import PeerVitals, Vitals

MAX_PEERS_TOLD = 8
LONGEST_S = 86_400.0
MOST_BYTES_S = 1e12
MOST_BYTES = 1 << 50
MOST_SAMPLES = 1 << 30
MOST_UPTIME_S = 1e9
PENDING_PROBES = 16
DIGITS = 4
"""Tenths of milliseconds are told: what has not changed by more is no news."""
UPTIME_S = 60


class NodeMeter:
    """One node's measurements of itself."""

    def __init__(self, coordinator: NodeId) -> None:
        self.links = LinkMeter()
        self._coordinator = coordinator
        self._step = Forecast()
        self._batch = 0
        self._began: float | None = None
        self._probes: dict[int, float] = {}
        self._next_probe = 0
        self._told = 0

    def stepped(self, step_s: float, batch: int) -> None:
        """Training went at this pace."""
        if batch != self._batch:
            self._batch, self._step = batch, Forecast()
        self._step.take(step_s)

    def beat(self, now: float) -> int:
        """A heartbeat leaves: the number that its answer will carry."""
        self._began = now if self._began is None else self._began
        self._next_probe += 1
        self._probes[self._next_probe] = now
        while len(self._probes) > PENDING_PROBES:
            del self._probes[next(iter(self._probes))]
        return self._next_probe

    def answered(self, probe: int, now: float) -> None:
        sent = self._probes.pop(probe, None)
        if sent is not None:
            self.links.round_trip(self._coordinator, now - sent)

    def vitals(self, now: float, memory_bytes: int, resent: float) -> Vitals:
        """For a heartbeat: a few of the peers, in turn."""
        others = [node for node in self.links.nodes() if node != self._coordinator]
        turn = self._told % len(others) if others else 0
        told = (others[turn:] + others[:turn])[:MAX_PEERS_TOLD]
        self._told += len(told)
        way = next(iter(self.links.facts([self._coordinator])), None)
        return Vitals(
            step_s=round(self._step.next(), DIGITS),
            batch=self._batch,
            memory_bytes=memory_bytes,
            uptime_s=float(int(now - self._began) // UPTIME_S * UPTIME_S) if self._began is not None else 0.0,
            rtt_s=round(way.rtt_s, DIGITS) if way else 0.0,
            jitter_s=round(way.jitter_s, DIGITS) if way else 0.0,
            loss=round(resent, DIGITS),
            failed=round(self.links.failed(), DIGITS),
            up_bytes_s=round(self.links.up.rate.next()),
            down_bytes_s=round(self.links.down.rate.next()),
            peers=tuple(
                PeerVitals(fact.node, *(round(v, DIGITS) for v in (fact.rtt_s, fact.jitter_s, fact.failed)))
                for fact in self.links.facts(told)
            ),
        )


def believable(told: Vitals, known: Collection[NodeId]) -> Vitals:
    """The same within bounds, of peers that there are."""
    if _is_within(told) and all(p.node in known for p in told.peers):
        return told
    peers = [
        PeerVitals(
            p.node, _within(p.rtt_s, LONGEST_S), _within(p.jitter_s, LONGEST_S), _within(p.failed, 1.0)
        )
        for p in told.peers[:MAX_PEERS_TOLD]
        if p.node in known
    ]
    return Vitals(
        step_s=_within(told.step_s, LONGEST_S),
        batch=min(max(0, told.batch), MOST_SAMPLES),
        memory_bytes=min(max(0, told.memory_bytes), MOST_BYTES),
        uptime_s=_within(told.uptime_s, MOST_UPTIME_S),
        rtt_s=_within(told.rtt_s, LONGEST_S),
        jitter_s=_within(told.jitter_s, LONGEST_S),
        loss=_within(told.loss, 1.0),
        failed=_within(told.failed, 1.0),
        up_bytes_s=_within(told.up_bytes_s, MOST_BYTES_S),
        down_bytes_s=_within(told.down_bytes_s, MOST_BYTES_S),
        peers=tuple(peers),
    )


def _is_within(told: Vitals) -> bool:
    """Whether nothing of it must be cut: an honest node's word, and most are. (What is no number is within nothing.)"""
    return (
        0.0 <= told.step_s <= LONGEST_S
        and 0 <= told.batch <= MOST_SAMPLES
        and 0 <= told.memory_bytes <= MOST_BYTES
        and 0.0 <= told.uptime_s <= MOST_UPTIME_S
        and 0.0 <= told.rtt_s <= LONGEST_S
        and 0.0 <= told.jitter_s <= LONGEST_S
        and 0.0 <= told.loss <= 1.0
        and 0.0 <= told.failed <= 1.0
        and 0.0 <= told.up_bytes_s <= MOST_BYTES_S
        and 0.0 <= told.down_bytes_s <= MOST_BYTES_S
        and len(told.peers) <= MAX_PEERS_TOLD
        and all(
            0.0 <= p.rtt_s <= LONGEST_S and 0.0 <= p.jitter_s <= LONGEST_S and 0.0 <= p.failed <= 1.0
            for p in told.peers
        )
    )


def _within(value: float, most: float) -> float:
    return min(max(0.0, value), most) if math.isfinite(value) else 0.0
