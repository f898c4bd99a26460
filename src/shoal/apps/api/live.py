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
from itertools import islice, takewhile
from typing import Any

import msgspec

from shoal.apps.api.desk import Desk
from shoal.apps.api.diary import Diary
from shoal.apps.api.past import Past
from shoal.apps.api.records import RoundRecord, TrailPoint
from shoal.apps.api.roster import Fields, Roster, changed_fields
from shoal.apps.api.status import run_fields
from shoal.base.ids import NodeId, RunId
from shoal.coordinator.served import Run

FRAMES_KEPT = 64
EVENTS_SENT, ROUNDS_SENT = 300, 2_000
IDLE_S = 1.0
"""How often a run that nobody watches is looked at."""
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class Watcher:
    """One open page: frames wait here until they are sent."""

    run: RunId | None = None
    frames: deque[str] = field(default_factory=deque)
    fresh: bool = True
    """It needs the whole picture, which the next look gives it."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, frame: str) -> None:
        if len(self.frames) >= FRAMES_KEPT:
            self.frames.clear()
            self.fresh = True
        else:
            self.frames.append(frame)
        self.news.set()

    def begin(self, frame: str) -> None:
        """Take the whole picture."""
        self.fresh = False
        self.frames.clear()
        self.put(frame)


@dataclass(slots=True)
class _Shown:
    """What the last look at a run found."""

    roster: Roster = field(default_factory=Roster)
    run: Fields = field(default_factory=dict)
    last_seal: int = -1
    open_key: tuple[Any, ...] = ()
    last_event: int = 0
    edition: int = 0
    looked_at: float = 0.0


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
        return self._of(run).roster.trail(node)

    def status(self, run: RunId, rounds: int) -> bytes:
        """Everything about a run as JSON, as it is now."""
        self._refresh(run)
        fields = self._desk.status(run, rounds, with_nodes=False).model_dump()
        return _encode({**fields, "nodes": msgspec.Raw(self._of(run).roster.encoded())})

    def nodes(self, run: RunId) -> list[Fields]:
        """Every node of a run, as it is now."""
        self._refresh(run)
        return list(self._of(run).roster.fields.values())

    def full(self, run: RunId | None) -> str:
        """The whole picture of one run, and every run in brief, as of the last look."""
        frame: Fields = {"type": "full", "wall_ms": self._wall_ms(), "runs": list(self._runs.values())}
        served = self._desk.service.runs.get(run) if run else None
        if run is not None and served is not None:
            chronicle, shown = self._desk.diaries.of(run).chronicle, self._of(run)
            now = chronicle.open_round()
            frame |= {
                "run": shown.run,
                "nodes": msgspec.Raw(shown.roster.encoded()),
                "rounds": [_brief(record) for record in chronicle.rounds.latest(ROUNDS_SENT)],
                "open": _brief(now) if now else None,
                "events": [event.model_dump() for event in chronicle.events.latest(EVENTS_SENT)],
            }
        return _encode(frame).decode()

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
        fresh = [watcher for watcher in self._watchers if watcher.fresh]
        pictures = {run: self.full(run) for run in {watcher.run for watcher in fresh}}
        for watcher in fresh:
            watcher.begin(pictures[watcher.run])
        for run in set(self._shown) - set(self._desk.service.runs):
            del self._shown[run]

    def _refresh(self, run: RunId) -> None:
        clock, machine = self._desk.service.host.clock, self._desk.service.runs[run].machine
        self._of(run).roster.refresh(machine, self._desk.diaries.of(run), clock.now(), clock.wall_ms())

    def _of(self, run: RunId) -> _Shown:
        return self._shown.setdefault(run, _Shown())

    def _wall_ms(self) -> int:
        return self._desk.service.host.clock.wall_ms()

    def _send(self, run: RunId | None, delta: Fields) -> None:
        waiting = [watcher for watcher in self._watchers if watcher.run == run and not watcher.fresh]
        if waiting:
            frame = _encode(delta).decode()
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
        if changes := changed_fields(shown.run, fields):
            delta["run"] = changes
        shown.run = fields
        self._refresh(run)
        if nodes := shown.roster.news():
            delta["nodes"] = nodes
        return delta | _rounds(diary, shown) | _events(diary, shown)


def _rounds(diary: Diary, shown: _Shown) -> Fields:
    """New and changed rounds; all of them where many changed at once."""
    chronicle = diary.chronicle
    revised = chronicle.revised_since(shown.edition)
    found: Fields = {}
    if revised is None:
        found["rounds"] = [_brief(record) for record in chronicle.rounds.latest(ROUNDS_SENT)]
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
    shown.last_seal = next((record.seal or 0 for record in chronicle.rounds.newest_first()), -1)
    return found


def _after(rounds: Past[RoundRecord], seal: int) -> list[RoundRecord]:
    """The rounds sealed after this one, oldest first."""
    found = takewhile(lambda record: (record.seal or 0) > seal, rounds.newest_first())
    return list(islice(found, ROUNDS_SENT))[::-1]


def _events(diary: Diary, shown: _Shown) -> Fields:
    chronicle = diary.chronicle
    count = min(chronicle.last_event - shown.last_event, EVENTS_SENT)
    shown.last_event = chronicle.last_event
    if count <= 0:
        return {}
    return {"events": [event.model_dump() for event in chronicle.events.latest(count)]}


def _brief(record: RoundRecord) -> Fields:
    return record.model_dump()
