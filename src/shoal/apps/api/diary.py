"""What happened, as it happens: new log entries and changed seats become events.

In flow entries and seats; out flow log records with fields, and the reasons that the status shows but the
run's view forgets. Invariant: an event is told once, and only after its entry is durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from shoal.apps.api.chronicle import Chronicle
from shoal.apps.api.sentences import privacy_sentence, seat_sentence
from shoal.apps.printable import printable
from shoal.base.ids import NodeId, RunId
from shoal.coordinator.seats import Seats
from shoal.coordinator.served import Run
from shoal.coordinator.service import CoordinatorService
from shoal.runlog.chain import BadEntry, Link, read_link
from shoal.runlog.entries import (
    Attestations,
    Audits,
    Ban,
    Body,
    Digests,
    Funded,
    Genesis,
    Graft,
    Joined,
    Left,
    Plan,
    Regions,
    Rejected,
    Revoked,
    Rewind,
    Rotated,
    Seal,
    Snapshot,
    Stopped,
)

log = logging.getLogger("shoal.coordinator")
Fields = dict[str, str | int | float]
PAGE_ENTRIES = 256
REJECTIONS_KEPT = 100
PACE_S, LONGEST_S, SHARE = 0.03, 1.0, 0.2
"""Between two looks at what changed there is at least and at most such a pause, and looking takes about this share of
the time."""


@dataclass(frozen=True, slots=True)
class SeenRejection:
    round: int
    item: Rejected


@dataclass(slots=True)
class Diary:
    """One run's. `position` is the next entry to read."""

    position: int = 0
    rejections: deque[SeenRejection] = field(default_factory=lambda: deque(maxlen=REJECTIONS_KEPT))
    left: dict[NodeId, str] = field(default_factory=dict)
    connected: frozenset[NodeId] = frozenset()
    names: dict[NodeId, str] = field(default_factory=dict)
    """Of every node that was connected since the coordinator started."""
    spent: set[NodeId] = field(default_factory=set)
    """Whose privacy budget is known to be spent."""
    chronicle: Chronicle = field(default_factory=Chronicle)
    seen: tuple[int, int] = (0, -1)
    """Which seats were looked at last, and how often they had moved."""

    def take(self, link: Link) -> tuple[str, Fields]:
        """Remember what is worth it in the next entry; the event to tell."""
        self.position = link.entry.position + 1
        self.chronicle.take(link)
        body = link.entry.body
        if isinstance(body, Seal):
            self.rejections.extend(SeenRejection(body.round, item) for item in body.rejected)
        elif isinstance(body, Left):
            self.left[body.node] = printable(body.reason)
        elif isinstance(body, Joined):
            self.left.pop(body.node, None)
        event, fields = describe(body)
        return event, {**fields, "position": link.entry.position}

    def budgets_spent(self, spent: dict[NodeId, str], wall_ms: int) -> list[tuple[str, Fields]]:
        """Nodes whose privacy budget does not last for another round, of whom that was not said yet."""
        told = sorted(spent.keys() - self.spent)
        self.spent |= spent.keys()
        for node in told:
            self.chronicle.note(privacy_sentence(node, spent[node], self.chronicle.names), wall_ms)
        return [
            ("privacy_spent", {**_who(node, self.names.get(node, "")), "reason": spent[node]})
            for node in told
        ]

    def seats_moved(self, seats: Seats, over: bool, wall_ms: int) -> list[tuple[str, Fields]]:
        """Connections that came and went since the last call."""
        if self.seen == (id(seats), seats.moves):
            return []
        self.seen = (id(seats), seats.moves)
        now = {seat.node for seat in seats.by_node.values() if seat.connected}
        came, went = sorted(now - self.connected), sorted(self.connected - now)
        self.connected = frozenset(now)
        self.names.update({seat.node: seat.name for seat in seats.by_node.values() if seat.name})
        told = [("node_connected", node) for node in came]
        for node in went:
            if node in seats.by_node:
                told.append(("node_lost", node))
            elif over:  # Before the end, the log's own entry tells that a node left.
                told.append(("node_left", node))
        for event, node in told:
            self.chronicle.note(seat_sentence(event, node, self.names), wall_ms)
        return [(event, _who(node, self.names.get(node, ""))) for event, node in told]


def describe(body: Body) -> tuple[str, Fields]:
    """An entry as an event of the process's own log."""
    match body:
        case Genesis():
            return "run_founded", {"parameters": body.layout.numel, "state": body.state[:12]}
        case Joined():
            return "node_joined", _who(body.node, body.name)
        case Left():
            return "node_left", {**_who(body.node, ""), "reason": body.reason}
        case Plan():
            return "round_planned", {
                "round": body.round,
                "nodes": len(body.members),
                "reason": body.reason,
            }
        case Seal():
            return "round_sealed", {
                "round": body.round,
                "accepted": len(body.accepted),
                "rejected": len(body.rejected),
                "reason": body.reason,
            }
        case Attestations():
            return "state_attested", {"words": len(body.items)}
        case Snapshot():
            return "snapshot_saved", {"at": body.at, "bytes": body.size_bytes, "state": body.state[:12]}
        case Graft():
            return "parent_grafted", {"parent_position": body.parent.position, "bytes": body.size_bytes}
        case Rewind():
            return "run_rewound", {"to": body.to, "reason": body.reason}
        case Stopped():
            return "run_stopped", {"reason": body.reason}
        case Digests():
            return "digests_agreed", {"seal": body.seal, "shards": len(body.items), "reason": body.reason}
        case Funded():
            return "run_funded", {"add_micro": body.add_micro, "reason": body.reason}
        case Audits():
            return "work_audited", {"screenings": len(body.screenings), "verdicts": len(body.verdicts)}
        case Ban():
            kind = "node_banned" if body.until_ms else "node_unbanned"
            return kind, {**_who(body.node, ""), "until_ms": body.until_ms, "reason": body.reason}
        case Rotated():
            return "key_rotated", {**_who(body.node, ""), "successions": len(body.line)}
        case Revoked():
            return "key_revoked", {**_who(body.node, ""), "reason": body.reason}
        case Regions():
            hubs = " ".join(item.hub[:12] for item in body.items)
            return "regions_decided", {"regions": len(body.items), "hubs": hubs, "reason": body.reason}


def _who(node: NodeId, name: str) -> Fields:
    return {"node": node[:12], **({"node_name": name} if name else {})}


class Diaries:
    """The diaries of every run in service."""

    def __init__(self, service: CoordinatorService) -> None:
        self._service = service
        self.by_run: dict[RunId, Diary] = {}
        self.caught_up = asyncio.Event()
        """Set once what was in the logs at the start is read."""
        self.after: list[Callable[[], Awaitable[None]]] = []
        """What else is done after every look, for those who show it."""

    async def keep(self) -> None:
        """Follow all runs until cancelled. What is in the logs already is read, but not told."""
        for run, served in list(self._service.runs.items()):
            await self._read_on(run, tell=False)
            self._tell_budgets(run, served)
        self.caught_up.set()
        while True:
            await self._service.changed.wait()
            self._service.changed.clear()
            began = time.thread_time()
            for run, served in list(self._service.runs.items()):
                await self._follow(run, served)
            for show in self.after:
                await show()
            # Hundreds of heartbeats a second are one look, so that looking never crowds out answering.
            await asyncio.sleep(min(LONGEST_S, max(PACE_S, (time.thread_time() - began) / SHARE)))

    def of(self, run: RunId) -> Diary:
        return self.by_run.setdefault(run, Diary())

    async def _follow(self, run: RunId, served: Run) -> None:
        if self.of(run).position < served.machine.view.length:
            await self._read_on(run, tell=True)
            self._tell_budgets(run, served)
        over = served.machine.view.stopped is not None
        wall_ms = self._service.host.clock.wall_ms()
        for event, fields in self.of(run).seats_moved(served.machine.seats, over, wall_ms):
            _tell(run, event, fields)

    def _tell_budgets(self, run: RunId, served: Run) -> None:
        spent, wall_ms = served.machine.privacy.exhausted(), self._service.host.clock.wall_ms()
        for event, fields in self.of(run).budgets_spent(spent, wall_ms):
            _tell(run, event, fields)

    async def _read_on(self, run: RunId, *, tell: bool) -> None:
        diary, store = self.of(run), self._service.store
        while True:
            start = diary.position
            page = await self._service.host.work(
                lambda start=start: list(store.read(run, start, start + PAGE_ENTRIES))  # type: ignore[misc]
            )
            for encoded in page:
                try:
                    told = diary.take(read_link(encoded))
                except BadEntry:
                    return  # Damage since the start; the coordinator's own reads report it.
                if tell:
                    _tell(run, *told)
            if len(page) < PAGE_ENTRIES:
                return


def _tell(run: RunId, event: str, fields: Fields) -> None:
    log.info(event, extra={"run": run[:12], **fields})
