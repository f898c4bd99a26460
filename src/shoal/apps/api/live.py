"""What changed, as it changes: one stream of batched deltas for everybody who looks.

In flow the runs in service and their diaries, after every look; out flow frames of JSON. Invariant: a look is worked
out once, however many watch; who reads too slowly misses frames and gets the whole picture again, so that nobody is
waited for and nobody sees a state that never was.

Frames: `full` (everything of the run that is watched), then `delta` (what changed since the frame before it).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shoal.apps.api.desk import Desk
from shoal.apps.api.diary import Diary
from shoal.apps.api.records import RoundRecord, TrailPoint
from shoal.apps.api.status import Standings, finite, node_status, run_fields
from shoal.apps.printable import printable
from shoal.base.ids import NodeId, RunId
from shoal.coordinator.seats import Seat
from shoal.coordinator.service import Run
from shoal.wire.messages import Heartbeat

Fields = dict[str, Any]
FRAMES_KEPT = 64
EVENTS_SENT, ROUNDS_SENT = 300, 2_000
IDLE_S = 1.0
"""How often a run that nobody watches is looked at."""
TRAIL_POINTS, TRAIL_STEP_MS = 120, 5_000
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class Watcher:
    """One open page: frames wait here until they are sent."""

    run: RunId | None = None
    frames: deque[bytes] = field(default_factory=deque)
    fresh: bool = True
    """It needs the whole picture, which the next look gives it."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, frame: bytes) -> None:
        if len(self.frames) >= FRAMES_KEPT:
            self.frames.clear()
            self.fresh = True
        else:
            self.frames.append(frame)
        self.news.set()

    def begin(self, frame: bytes) -> None:
        """Take the whole picture."""
        self.fresh = False
        self.frames.clear()
        self.put(frame)


@dataclass(slots=True)
class _Shown:
    """What the last look at a run found."""

    nodes: dict[NodeId, Fields] = field(default_factory=dict)
    keys: dict[NodeId, tuple[Any, ...]] = field(default_factory=dict)
    run: Fields = field(default_factory=dict)
    last_seal: int = -1
    open_key: tuple[Any, ...] = ()
    last_event: int = 0
    edition: int = 0
    looked_at: float = 0.0
    trails: dict[NodeId, deque[TrailPoint]] = field(default_factory=dict)


class Live:
    """Give `look` to the diaries' `after`; watchers come and go with `watch` and `leave`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._shown: dict[RunId, _Shown] = {}
        self._runs: dict[RunId, Fields] = {}
        self._watchers: set[Watcher] = set()

    def watch(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)
        watcher.fresh = True
        self._desk.service.changed.set()

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def trail(self, run: RunId, node: NodeId) -> list[TrailPoint]:
        return list(self._of(run).trails.get(node, ()))

    def full(self, run: RunId | None) -> bytes:
        """The whole picture of one run, and every run in brief, as of the last look."""
        frame: Fields = {"type": "full", "wall_ms": self._wall_ms(), "runs": list(self._runs.values())}
        served = self._desk.service.runs.get(run) if run else None
        if run is not None and served is not None:
            chronicle, shown = self._desk.diaries.of(run).chronicle, self._of(run)
            now = chronicle.open_round()
            frame |= {
                "run": shown.run,
                "nodes": list(shown.nodes.values()),
                "rounds": [_brief(record) for record in list(chronicle.rounds)[-ROUNDS_SENT:]],
                "open": _brief(now) if now else None,
                "events": [event.model_dump() for event in list(chronicle.events)[-EVENTS_SENT:]],
            }
        return _encode(frame)

    async def look(self) -> None:
        """See what changed, and hand it out."""
        clock = self._desk.service.host.clock
        watched = {watcher.run for watcher in self._watchers}
        news = self._summaries()
        for run, served in list(self._desk.service.runs.items()):
            shown = self._of(run)
            if run not in watched and clock.now() - shown.looked_at < IDLE_S:
                continue
            shown.looked_at = clock.now()
            delta = self._delta(run, served, shown)
            if run in watched and (delta or news):
                self._send(run, {"type": "delta", "wall_ms": self._wall_ms(), "runs": news, **delta})
        if news:
            self._send(None, {"type": "delta", "wall_ms": self._wall_ms(), "runs": news})
        for watcher in self._watchers:
            if watcher.fresh:
                watcher.begin(self.full(watcher.run))
        for run in set(self._shown) - set(self._desk.service.runs):
            del self._shown[run]

    def _of(self, run: RunId) -> _Shown:
        return self._shown.setdefault(run, _Shown())

    def _wall_ms(self) -> int:
        return self._desk.service.host.clock.wall_ms()

    def _send(self, run: RunId | None, delta: Fields) -> None:
        waiting = [watcher for watcher in self._watchers if watcher.run == run and not watcher.fresh]
        if waiting:
            frame = _encode(delta)
            for watcher in waiting:
                watcher.put(frame)

    def _summaries(self) -> list[Fields]:
        found = {RunId(item.run): item.model_dump() for item in self._desk.summaries()}
        changed = [fields for run, fields in found.items() if self._runs.get(run) != fields]
        self._runs = found
        return changed

    def _delta(self, run: RunId, served: Run, shown: _Shown) -> Fields:
        diary = self._desk.diaries.of(run)
        delta: Fields = {}
        fields = run_fields(served.machine, diary)
        if changes := _changes(shown.run, fields):
            delta["run"] = changes
        shown.run = fields
        if nodes := self._nodes(served, diary, shown):
            delta["nodes"] = nodes
        return delta | _rounds(diary, shown) | _events(diary, shown)

    def _nodes(self, served: Run, diary: Diary, shown: _Shown) -> list[Fields]:
        standings = Standings.at(served.machine, diary, self._desk.service.host.clock.now())
        seats, found, wall_ms = served.machine.seats.by_node, [], self._wall_ms()
        for node, member in served.machine.view.members.items():
            seat = seats.get(node)
            beat = seat.last_beat if seat else None
            key = _key(standings, node, seat, beat, member.present)
            if shown.keys.get(node) == key:
                continue
            shown.keys[node] = key
            fields = node_status(standings, member).model_dump()
            changes = _changes(shown.nodes.get(node, {}), fields)
            shown.nodes[node] = fields
            if changes:
                found.append({"node": node, **changes})
            if beat is not None:
                _follow(shown.trails.setdefault(node, deque(maxlen=TRAIL_POINTS)), beat, wall_ms)
        return found


def _key(
    standings: Standings, node: NodeId, seat: Seat | None, beat: Heartbeat | None, present: bool
) -> tuple[Any, ...]:
    """Everything that a node's fields depend on, cheap to compare."""
    if seat is None:
        return (present, node in standings.diary.names, len(standings.diary.rejections))
    left_s = seat.lease_until - standings.now
    quiet = int(left_s) + 1 if not seat.connected else left_s > 0
    view = standings.machine.view
    standing = (node in view.planned, node in standings.ready, view.round, view.stopped is None)
    rejected = diary_rejections(standings.diary)
    return (id(beat), seat.at, seat.connected, quiet, standing, seat.name, seat.address, rejected)


def diary_rejections(diary: Diary) -> tuple[int, int]:
    """Changes when a rejection is added."""
    last = diary.rejections[-1] if diary.rejections else None
    return (len(diary.rejections), last.round if last else -1)


def _follow(trail: deque[TrailPoint], beat: Heartbeat, wall_ms: int) -> None:
    if trail and wall_ms - trail[-1].time_ms < TRAIL_STEP_MS:
        return
    trail.append(
        TrailPoint(
            time_ms=wall_ms,
            step=beat.step,
            loss=finite(beat.loss),
            tokens_per_s=finite(beat.tokens_per_s),
            up_bytes=beat.up_bytes,
            down_bytes=beat.down_bytes,
            doing=printable(beat.doing),
        )
    )


def _rounds(diary: Diary, shown: _Shown) -> Fields:
    """New and changed rounds; all of them where many changed at once."""
    chronicle = diary.chronicle
    revised = chronicle.revised_since(shown.edition)
    found: Fields = {}
    if revised is None:
        found["rounds"] = [_brief(record) for record in list(chronicle.rounds)[-ROUNDS_SENT:]]
        found["rounds_anew"] = True
    else:
        fresh = {record.seal: record for record in (*revised, *_after(chronicle.rounds, shown.last_seal))}
        if fresh:
            found["rounds"] = [_brief(record) for record in fresh.values()]
    now = chronicle.open_round()
    key = (now.round, len(now.planned)) if now else ()
    if key != shown.open_key:
        found["open"] = _brief(now) if now else None
    shown.edition, shown.open_key = chronicle.edition, key
    shown.last_seal = chronicle.rounds[-1].seal or 0 if chronicle.rounds else -1
    return found


def _after(rounds: deque[RoundRecord], seal: int) -> list[RoundRecord]:
    """The rounds sealed after this one, oldest first."""
    found: list[RoundRecord] = []
    for place in range(min(len(rounds), ROUNDS_SENT)):
        record = rounds[-1 - place]
        if (record.seal or 0) <= seal:
            break
        found.append(record)
    return found[::-1]


def _events(diary: Diary, shown: _Shown) -> Fields:
    chronicle = diary.chronicle
    count = min(chronicle.last_event - shown.last_event, EVENTS_SENT, len(chronicle.events))
    shown.last_event = chronicle.last_event
    if count <= 0:
        return {}
    return {"events": [chronicle.events[place].model_dump() for place in range(-count, 0)]}


def _brief(record: RoundRecord) -> Fields:
    return record.model_dump()


def _changes(before: Fields, after: Fields) -> Fields:
    return {name: value for name, value in after.items() if name not in before or before[name] != value}
