"""A run's past as people look at it: rounds, events and checkpoints, kept as entries come.

In flow the log's entries in order, and what seats do beside it; out flow records. Invariant: what is kept is bounded,
and everything but the seats' events is a function of the log alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, takewhile

from shoal.apps.api.past import Past
from shoal.apps.api.records import (
    CheckpointRecord,
    Contribution,
    EventRecord,
    FateRecord,
    Level,
    RefusedRecord,
    RewindRecord,
    RoundRecord,
    UpdateRecord,
)
from shoal.apps.api.sentences import Sentence, entry_sentence
from shoal.apps.printable import printable
from shoal.base.ids import NodeId
from shoal.base.layout import Layout
from shoal.runlog.chain import Link
from shoal.runlog.entries import (
    Accepted,
    Attestation,
    Attestations,
    Claim,
    Genesis,
    Joined,
    Plan,
    Receipt,
    Rewind,
    Seal,
    Snapshot,
)
from shoal.wire.signed import parse

ROUNDS_KEPT, EVENTS_KEPT, CHECKPOINTS_KEPT = 20_000, 20_000, 2_000
REVISIONS_KEPT, FATES_SHOWN, ROUNDS_SEARCHED = 256, 200, 2_000


@dataclass(slots=True)
class _Open:
    """The round that is being planned."""

    round: int
    plan: int
    opened_ms: int
    step: int
    why: str
    planned: dict[NodeId, int] = field(default_factory=dict)
    """By node, its steps."""


@dataclass(slots=True)
class _Sum:
    """What came of one node's work."""

    planned: int = 0
    accepted: int = 0
    late: int = 0
    rejected: int = 0
    tokens: int = 0
    update_bytes: int = 0


@dataclass(slots=True)
class Chronicle:
    """One run's. Read its fields freely; change them through `take` and `note`."""

    rounds: Past[RoundRecord] = field(default_factory=lambda: Past(RoundRecord, ROUNDS_KEPT))
    events: Past[EventRecord] = field(default_factory=lambda: Past(EventRecord, EVENTS_KEPT))
    checkpoints: deque[CheckpointRecord] = field(default_factory=lambda: deque(maxlen=CHECKPOINTS_KEPT))
    rewinds: deque[RewindRecord] = field(default_factory=lambda: deque(maxlen=CHECKPOINTS_KEPT))
    names: dict[NodeId, str] = field(default_factory=dict)
    edition: int = 0
    """Rises whenever a round that is here already changes."""
    revised: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REVISIONS_KEPT))
    """The latest such changes: the edition, and the round's seal."""
    rewound: int = 0
    """The edition of the last rewind, which changed many at once."""
    _sums: dict[NodeId, _Sum] = field(default_factory=dict)
    _open: _Open | None = None
    _layout: Layout | None = None
    _last_at: int = 0
    _next_id: int = 1

    @property
    def last_event(self) -> int:
        return self._next_id - 1

    def take(self, link: Link) -> None:
        """Remember the next entry."""
        body, position, time_ms = link.entry.body, link.entry.position, link.entry.time_ms
        match body:
            case Genesis():
                self._layout = body.layout
                self._save(Snapshot(at=0, state=body.state, blob=body.snapshot, size_bytes=body.snapshot_bytes,
                                    holders=()), position, time_ms)  # fmt: skip
            case Joined():
                self.names[body.node] = printable(body.name, 40)
            case Plan():
                self._planned(body, position, time_ms)
            case Seal():
                self._sealed(body, position, time_ms)
            case Attestations():
                self._validated(body)
            case Snapshot():
                self._save(body, position, time_ms)
            case Rewind():
                self._rewound(body, position, time_ms)
            case _:
                pass
        self.note(entry_sentence(body, self.names), time_ms, position)

    def note(self, told: Sentence, time_ms: int, position: int | None = None) -> EventRecord:
        """Remember something that happened."""
        level: Level = told.level
        event = EventRecord(
            id=self._next_id,
            time_ms=time_ms,
            kind=told.kind,
            level=level,
            text=printable(told.text, 400),
            reason=printable(told.reason, 400),
            round=told.round,
            node=told.node,
            position=position,
        )
        self._next_id += 1
        self.events.append(event)
        return event

    # --- reading -----------------------------------------------------------------------------------------

    def open_round(self) -> RoundRecord | None:
        """The round that is open now."""
        now = self._open
        return None if now is None else _blank(now)

    def contribution(self, node: NodeId) -> Contribution:
        found = self._sums.get(node, _Sum())
        return Contribution(
            planned=found.planned,
            accepted=found.accepted,
            late=found.late,
            rejected=found.rejected,
            tokens=found.tokens,
            update_bytes=found.update_bytes,
        )

    def fates(self, node: NodeId, newest_first: Iterable[RoundRecord]) -> list[FateRecord]:
        """What became of the node's last rounds, of the last `ROUNDS_SEARCHED` of these: they are taken beforehand,
        since to go through them takes a while, and is done in another thread."""
        lately = islice(newest_first, ROUNDS_SEARCHED)
        known = (fate for record in lately if (fate := _fate(record, node)) is not None)
        found = list(islice(known, FATES_SHOWN))[::-1]
        now = self.open_round()
        if now is not None and node in now.planned:
            found.append(
                FateRecord(
                    round=now.round,
                    fate="open",
                    why="the round is open",
                    tokens=0,
                    loss=None,
                    sealed_ms=None,
                )
            )
        return found

    # --- entries -----------------------------------------------------------------------------------------

    def _sum(self, node: NodeId) -> _Sum:
        return self._sums.setdefault(node, _Sum())

    def _planned(self, plan: Plan, position: int, time_ms: int) -> None:
        if self._open is None or self._open.round != plan.round:
            self._open = _Open(plan.round, position, time_ms, plan.step, plan.reason)
        for item in plan.members:
            if item.node not in self._open.planned:
                self._sum(item.node).planned += 1
            self._open.planned[item.node] = item.steps

    def _sealed(self, seal: Seal, position: int, time_ms: int) -> None:
        now = self._open or _Open(seal.round, position, time_ms, 0, "")
        accepted = [made for item in seal.accepted if (made := _update(item, now.round)) is not None]
        rejected = [
            RefusedRecord(node=item.node, reason=printable(item.reason, 400)) for item in seal.rejected
        ]
        settled = {item.node for item in accepted} | {item.node for item in rejected}
        late = [node for node in now.planned if node not in settled]
        for item in accepted:
            mine = self._sum(NodeId(item.node))
            mine.accepted += 1
            mine.tokens += item.tokens
            mine.update_bytes += item.size_bytes
        for refused in rejected:
            self._sum(NodeId(refused.node)).rejected += 1
        for node in late:
            self._sum(node).late += 1
        self.rounds.append(self._record(now, seal, position, time_ms, accepted, rejected, late))
        self._open, self._last_at = None, position

    def _record(
        self,
        now: _Open,
        seal: Seal,
        position: int,
        time_ms: int,
        accepted: list[UpdateRecord],
        rejected: list[RefusedRecord],
        late: list[NodeId],
    ) -> RoundRecord:
        samples = sum(item.samples for item in accepted)
        loss = sum((item.loss or 0.0) * item.samples for item in accepted) / max(1, samples)
        known = bool(accepted) and all(item.loss is not None for item in accepted)
        steps = sorted(item.steps for item in accepted)
        return _blank(now).model_copy(
            update={
                "round": seal.round,
                "seal": position,
                "sealed_ms": time_ms,
                "accepted": accepted,
                "rejected": rejected,
                "late": late,
                "why_sealed": printable(seal.reason, 400),
                "steps": now.step + (steps[len(steps) // 2] if steps else 0),
                "tokens": sum(item.tokens for item in accepted),
                "update_bytes": sum(item.size_bytes for item in accepted),
                "dense_bytes": 4 * len(accepted) * self._numel(seal),
                "train_loss": loss if known else None,
            }
        )

    def _numel(self, seal: Seal) -> int:
        fragments = self._layout.fragments if self._layout else ()
        return sum(fragments[index].numel for index in seal.fragments if index < len(fragments))

    def _validated(self, body: Attestations) -> None:
        words = [word for item in body.items if (word := parse(item.payload, Attestation)) is not None]
        for word in words:
            if word.validation is not None and math.isfinite(word.validation):
                self._change(word.at.position, validation_loss=word.validation)

    def _change(self, seal: int, **fields: object) -> None:
        for age, record in enumerate(self.rounds.newest_first(), 1):
            if record.seal == seal:
                self.rounds.replace(len(self.rounds) - age, record.model_copy(update=fields))
                self.edition += 1
                self.revised.append((self.edition, seal))
            if record.seal is not None and record.seal <= seal:
                return

    def revised_since(self, edition: int) -> list[RoundRecord] | None:
        """The rounds that changed since; None where they are too many to tell apart."""
        if self.edition == edition:
            return []
        oldest = self.revised[0][0] if self.revised else self.edition + 1
        if self.rewound > edition or oldest > edition + 1:
            return None
        seals = {seal for number, seal in self.revised if number > edition}
        return [record for record in self.rounds.latest(REVISIONS_KEPT) if record.seal in seals]

    def _save(self, body: Snapshot, position: int, time_ms: int) -> None:
        standing = [saved.at for saved in self.checkpoints if saved.stands and saved.at < body.at]
        lately = takewhile(lambda item: (item.seal or 0) >= body.at, self.rounds.newest_first())
        round_number = next((item.round + 1 for item in lately if item.seal == body.at), 0)
        self.checkpoints.append(
            CheckpointRecord(
                at=body.at,
                position=position,
                time_ms=time_ms,
                round=round_number,
                parent=max(standing, default=None),
                state=body.state,
                blob=body.blob,
                size_bytes=body.size_bytes,
                stands=True,
                here=False,
            )
        )

    def _rewound(self, body: Rewind, position: int, time_ms: int) -> None:
        self.rewinds.append(
            RewindRecord(
                position=position,
                time_ms=time_ms,
                to=body.to,
                came_from=self._last_at,
                reason=printable(body.reason, 400),
            )
        )
        later = takewhile(lambda item: (item.seal or 0) > body.to, self.rounds.newest_first())
        self.rounds.change_latest(
            sum(1 for _ in later), lambda record: record.model_copy(update={"undone": True})
        )
        for place, saved in enumerate(self.checkpoints):
            if saved.at > body.to and saved.stands:
                self.checkpoints[place] = saved.model_copy(update={"stands": False})
        self.edition += 1
        self.rewound = self.edition
        self._open, self._last_at = None, body.to


def _blank(now: _Open) -> RoundRecord:
    return RoundRecord(
        round=now.round,
        plan=now.plan,
        seal=None,
        opened_ms=now.opened_ms,
        sealed_ms=None,
        planned=list(now.planned),
        accepted=[],
        rejected=[],
        late=[],
        why_planned=printable(now.why, 400),
        why_sealed="",
        steps=now.step,
        tokens=0,
        update_bytes=0,
        dense_bytes=0,
        train_loss=None,
        validation_loss=None,
        undone=False,
    )


def _update(item: Accepted, round_number: int) -> UpdateRecord | None:
    claim = parse(item.claim.payload, Claim)
    if claim is None:
        return None
    receipts = [parse(receipt.payload, Receipt) for receipt in item.receipts]
    return UpdateRecord(
        node=claim.node,
        weight=item.weight,
        steps=claim.steps,
        samples=claim.samples,
        tokens=claim.tokens,
        size_bytes=claim.size_bytes,
        loss=claim.loss
        if claim.loss and math.isfinite(claim.loss)
        else None,  # Private nodes do not tell it.
        late=claim.round < round_number,
        holders=[receipt.holder for receipt in receipts if receipt is not None],
    )


def _fate(record: RoundRecord, node: NodeId) -> FateRecord | None:
    done = next((item for item in record.accepted if item.node == node), None)
    refused = next((item for item in record.rejected if item.node == node), None)
    blank = FateRecord(
        round=record.round,
        fate="late",
        why="its update did not come in time",
        tokens=0,
        loss=None,
        sealed_ms=record.sealed_ms,
    )
    if done is not None:
        why = "counted, though of an earlier round" if done.late else "counted"
        return blank.model_copy(
            update={"fate": "accepted", "why": why, "tokens": done.tokens, "loss": done.loss}
        )
    if refused is not None:
        return blank.model_copy(update={"fate": "rejected", "why": refused.reason})
    return blank if node in record.late else None
