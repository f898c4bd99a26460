"""What happened, in sentences.

In flow entries of the log and changes of seats; out flow sentences with their reason and how grave they are.
Invariant: pure; names come from strangers and are quoted as they are, for a reader that shows text as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from shoal.apps.api.records import Level
from shoal.base.ids import NodeId
from shoal.base.units import show_bytes
from shoal.credit.spec import show_credits
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
    Revoked,
    Rewind,
    Rotated,
    Screening,
    Seal,
    Snapshot,
    Stopped,
    Verdict,
)
from shoal.runlog.keys import Succession
from shoal.wire.signed import Signed, parse

T = TypeVar("T", Screening, Verdict)
LAST_MS = 253_402_300_799_000
"""The end of the year 9999: no calendar here goes further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    kind: str
    text: str
    reason: str = ""
    level: Level = "info"
    round: int | None = None
    node: str | None = None


def entry_sentence(body: Body, names: Mapping[NodeId, str]) -> Sentence:
    """An entry of the log as a sentence: every kind has one."""
    match body:
        case Genesis():
            return Sentence(
                kind="run_founded", text=f"The run begins, with {body.layout.numel:,} parameters."
            )
        case Joined():
            return Sentence(kind="node_joined", text=f"{who(body.node, names)} joined.", node=body.node)
        case Left():
            text = f"{who(body.node, names)} left."
            return Sentence(kind="node_left", text=text, reason=body.reason, level="warning", node=body.node)
        case Plan():
            text = f"Round {body.round} is planned for {count(len(body.members), 'node')}."
            return Sentence(kind="round_planned", text=text, reason=body.reason, round=body.round)
        case Seal():
            return _sealed(body, names)
        case Digests():
            text = f"{count(len(body.items), 'shard')} of the seal at {body.seal} were folded by a few."
            return Sentence(kind="digests_agreed", text=text, reason=body.reason)
        case Attestations():
            text = f"{count(len(body.items), 'node')} attested the state."
            return Sentence(kind="state_attested", text=text)
        case Snapshot():
            text = f"The state at {body.at} is saved ({show_bytes(body.size_bytes)})."
            return Sentence(kind="snapshot_saved", text=text)
        case Graft():
            text = f"News of the parent run came in, {show_bytes(body.size_bytes)}."
            return Sentence(kind="parent_grafted", text=text)
        case Rewind():
            text = f"The run goes back to its state at {body.to}."
            return Sentence(kind="run_rewound", text=text, reason=body.reason, level="warning")
        case Stopped():
            return Sentence(kind="run_stopped", text="The run is over.", reason=body.reason)
        case Funded():
            text = f"The run's budget grows by {show_credits(body.add_micro)} credits."
            return Sentence(kind="run_funded", text=text, reason=body.reason)
        case Audits():
            return _audited(body, names)
        case Ban():
            return _banned(body, names)
        case Rotated():
            return _rotated(body, names)
        case Revoked():
            by = "the organiser's" if body.word is None else "its own"
            text = f"No key speaks for {who(body.node, names)} any more, by {by} word."
            return Sentence(
                kind="key_revoked", text=text, reason=body.reason, level="warning", node=body.node
            )
        case Regions():
            told = [
                f"region {item.number} of {count(len(item.members), 'machine')}, hub {who(item.hub, names)}"
                for item in body.items[:4]
            ]
            text = f"The pool's machines are {count(len(body.items), 'region')}: {'; '.join(told) or 'none'}."
            return Sentence(kind="regions_decided", text=text, reason=body.reason)


def _rotated(body: Rotated, names: Mapping[NodeId, str]) -> Sentence:
    """Whoever never joined and has a key is the coordinator."""
    member = body.node in names
    text = f"Another key speaks for {who(body.node, names) if member else 'the coordinator'} from here on."
    words = [parse(by_old.payload, Succession) for by_old, _ in body.line]
    stolen = any(word is not None and word.revokes for word in words)
    if stolen:
        text += " The one before is given up as compromised."
    level: Level = "warning" if stolen else "info"
    return Sentence(kind="key_rotated", text=text, level=level, node=body.node if member else None)


def privacy_sentence(node: NodeId, why: str, names: Mapping[NodeId, str]) -> Sentence:
    """A node that can be given no more work without telling more of its data than it promised."""
    text = f"{who(node, names)} is given no more work."
    return Sentence(kind="privacy_spent", text=text, reason=why, level="warning", node=node)


def _sealed(seal: Seal, names: Mapping[NodeId, str]) -> Sentence:
    text = f"Round {seal.round} is sealed with {count(len(seal.accepted), 'update')}."
    if seal.rejected:
        refused = "; ".join(f"{who(item.node, names)}: {item.reason}" for item in seal.rejected[:4])
        text += f" Rejected: {refused}."
    level: Level = "warning" if seal.rejected else "info"
    return Sentence(kind="round_sealed", text=text, reason=seal.reason, level=level, round=seal.round)


def _audited(body: Audits, names: Mapping[NodeId, str]) -> Sentence:
    told = [_found(signed, names) for signed in body.verdicts]
    told += [_screened(signed, names) for signed in body.screenings]
    outcomes = {word.outcome for word in _words(body.verdicts, Verdict)}
    level: Level = "error" if "forged" in outcomes else "warning" if outcomes - {"upheld"} else "info"
    accused = [word.author for word in _words(body.verdicts, Verdict) if word.outcome != "upheld"]
    text = " ".join(told) or "Nobody found anything."
    return Sentence(kind="work_audited", text=text, level=level, node=accused[0] if accused else None)


OUTCOMES = {
    "upheld": "and came to the same",
    "forged": "and came to something else: it is forged",
    "withheld": "and was not shown the state that it began from",
}
"""By a verdict's outcome, how the sentence ends."""


def _found(signed: Signed, names: Mapping[NodeId, str]) -> str:
    word = parse(signed.payload, Verdict)
    if word is None:
        return "A verdict came that cannot be read."
    ended = OUTCOMES.get(word.outcome, f"and says: {word.outcome}")
    return f"{who(word.node, names)} ran update {word.sequence} of {who(word.author, names)} again, {ended}."


def _screened(signed: Signed, names: Mapping[NodeId, str]) -> str:
    word = parse(signed.payload, Screening)
    if word is None:
        return "A screening came that cannot be read."
    odd = max(word.scores, default=0) / 1000
    of = count(len(word.scores), "update")
    return f"{who(word.node, names)} screened {of} of the seal at {word.at.position}; the oddest is {odd:.1f} off."


def _words(items: tuple[Signed, ...], kind: type[T]) -> list[T]:
    return [word for item in items if (word := parse(item.payload, kind)) is not None]


def _banned(body: Ban, names: Mapping[NodeId, str]) -> Sentence:
    if not body.until_ms:
        text = f"{who(body.node, names)} may take part again."
        return Sentence(kind="node_unbanned", text=text, reason=body.reason, node=body.node)
    until = datetime.fromtimestamp(min(body.until_ms, LAST_MS) / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    text = f"{who(body.node, names)} may not take part until {until} UTC."
    return Sentence(kind="node_banned", text=text, reason=body.reason, level="error", node=body.node)


SEATS: dict[str, tuple[str, Level, str]] = {
    "node_connected": ("is connected.", "info", ""),
    "node_lost": ("is lost.", "error", "its connection broke"),
    "node_left": ("left.", "info", "the run is over"),
}
"""What seats do beside the log: by event, the words, how grave it is, and why."""


def seat_sentence(event: str, node: NodeId, names: Mapping[NodeId, str]) -> Sentence:
    words, level, reason = SEATS[event]
    return Sentence(kind=event, text=f"{who(node, names)} {words}", reason=reason, level=level, node=node)


def who(node: NodeId, names: Mapping[NodeId, str]) -> str:
    name = names.get(node, "")
    return f"{name} ({node[:8]})" if name else f"Node {node[:8]}"


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
