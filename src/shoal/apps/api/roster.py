"""One run's nodes as people see them, kept so that thousands of heartbeats cost no more than what they change.

In flow the run's machine and its diary, whenever somebody looks; out flow every node's fields, what of them changed,
and all of them as JSON. Invariant: a node is worked out again when something changed that its fields depend on, and
only then; what was not handed out as news yet is not lost by looking twice.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import msgspec

from shoal.apps.api.diary import Diary
from shoal.apps.api.records import TrailPoint
from shoal.apps.api.status import Standings, finite, node_status
from shoal.apps.printable import printable
from shoal.base.ids import NodeId
from shoal.coordinator.machine import CoordinatorMachine
from shoal.coordinator.seats import Seat
from shoal.wire.messages import Heartbeat

Fields = dict[str, Any]
TRAIL_POINTS, TRAIL_STEP_MS = 120, 5_000
_encode = msgspec.json.Encoder().encode


class Roster:
    def __init__(self) -> None:
        self.fields: dict[NodeId, Fields] = {}
        self._trails: dict[NodeId, deque[tuple[int, Heartbeat]]] = {}
        """By node, some of its heartbeats, each with when it came."""
        self._keys: dict[NodeId, tuple[Any, ...]] = {}
        self._common: tuple[Any, ...] = ()
        self._news: dict[NodeId, Fields] = {}
        self._encoded: dict[NodeId, bytes] = {}
        self._order: list[NodeId] = []

    def refresh(self, machine: CoordinatorMachine, diary: Diary, now: float, wall_ms: int) -> None:
        """Work out again whoever changed since the last time."""
        standings, view, seats = Standings.at(machine, diary, now), machine.view, machine.seats.by_node
        for node in self._candidates(machine, diary, now):
            member, seat = view.members.get(node), seats.get(node)
            if member is None:
                continue
            key = (*_key(standings, node, seat, member.present), *_past(standings, node))
            if self._keys.get(node) == key:
                continue
            self._keys[node] = key
            self._take(node, node_status(standings, member).model_dump())
            if seat is not None and seat.last_beat is not None:
                self._follow(node, seat.last_beat, wall_ms)

    def trail(self, node: NodeId) -> list[TrailPoint]:
        """What a node has said of itself lately."""
        return [_point(beat, wall_ms) for wall_ms, beat in self._trails.get(node, ())]

    def _follow(self, node: NodeId, beat: Heartbeat, wall_ms: int) -> None:
        trail = self._trails.setdefault(node, deque(maxlen=TRAIL_POINTS))
        if not trail or wall_ms - trail[-1][0] >= TRAIL_STEP_MS:
            trail.append((wall_ms, msgspec.structs.replace(beat, vitals=None)))  # Which nobody is shown.

    def news(self) -> list[Fields]:
        """What changed since the last call: each node's changed fields."""
        found, self._news = self._news, {}
        return [{"node": node, **changes} for node, changes in found.items()]

    def encoded(self) -> bytes:
        """Every node, sorted, as a JSON list."""
        if len(self._order) != len(self.fields):
            self._order = sorted(self.fields)
        for node in self._order:
            if node not in self._encoded:
                self._encoded[node] = _encode(self.fields[node])
        return b"[" + b",".join([self._encoded[node] for node in self._order]) + b"]"

    def _candidates(self, machine: CoordinatorMachine, diary: Diary, now: float) -> set[NodeId]:
        """Who may have changed: whoever was heard, is new, or is away and counted down; all, if the run moved on."""
        members, seats = machine.view.members, machine.seats
        touched, seats.touched = seats.touched, set()
        common = _common(machine, diary)
        if common != self._common:
            self._common = common
            return set(members)
        away = {seat.node for seat in seats.by_node.values() if not seat.connected or seat.lease_until <= now}
        return (
            touched | away | (members.keys() - self.fields.keys()) | (members.keys() - seats.by_node.keys())
        )

    def _take(self, node: NodeId, fields: Fields) -> None:
        changes = changed_fields(self.fields.get(node, {}), fields)
        if changes:
            self.fields[node] = fields
            self._encoded.pop(node, None)
            self._news.setdefault(node, {}).update(changes)


def changed_fields(before: Fields, after: Fields) -> Fields:
    return {name: value for name, value in after.items() if name not in before or before[name] != value}


def _common(machine: CoordinatorMachine, diary: Diary) -> tuple[Any, ...]:
    """What every node's fields depend on."""
    view = machine.view
    return (
        id(machine),
        view.round,
        view.at,
        view.stopped is None,
        view.plan_position,
        len(view.planned),
        machine.market.short,
        len(view.audit_words),
        _last_rejection(diary),
    )


def _key(standings: Standings, node: NodeId, seat: Seat | None, present: bool) -> tuple[Any, ...]:
    """Everything that a node's fields depend on, cheap to compare."""
    diary, view = standings.diary, standings.machine.view
    if seat is None:
        return (present, node in diary.names, diary.left.get(node), _last_rejection(diary))
    left_s = seat.lease_until - standings.now
    quiet = (left_s > 0, 0 if seat.connected else math.ceil(left_s))
    standing = (node in view.planned, node in standings.ready, view.round, view.stopped is None)
    rest = (seat.paused, standings.machine.market.short, view.plan_position, _last_rejection(diary))
    return (id(seat), seat.beats, seat.at, seat.connected, quiet, standing, seat.name, seat.address, rest)


def _past(standings: Standings, node: NodeId) -> tuple[Any, ...]:
    """What the log has come to for a node, whether it is here or not."""
    sums = standings.diary.chronicle.contribution(node)
    key = standings.machine.view.keys[node].current
    return (sums.planned, sums.accepted, key, *standings.audited(node).values())


def _last_rejection(diary: Diary) -> tuple[int, int]:
    """Changes when a rejection is added."""
    last = diary.rejections[-1] if diary.rejections else None
    return (len(diary.rejections), last.round if last else -1)


def _point(beat: Heartbeat, wall_ms: int) -> TrailPoint:
    return TrailPoint(
        time_ms=wall_ms,
        step=beat.step,
        loss=finite(beat.loss),
        tokens_per_s=finite(beat.tokens_per_s),
        up_bytes=beat.up_bytes,
        down_bytes=beat.down_bytes,
        doing=printable(beat.doing),
    )
