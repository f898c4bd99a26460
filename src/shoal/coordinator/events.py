"""What the coordinator's machine hears and what it wants done: plain values, no behaviour."""

from __future__ import annotations

import msgspec

from shoal.base.ids import BlobId, NodeId
from shoal.credit.lines import Line
from shoal.runlog.entries import Graft, Regions
from shoal.runlog.keys import Handover
from shoal.wire.messages import Message, Refuse
from shoal.wire.signed import Signed


class Instant(msgspec.Struct, frozen=True):
    """Now: on the process's own forward-going clock, and by the calendar."""

    now: float
    wall_ms: int


# --- events ------------------------------------------------------------------------------------------


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """A node proved its key and was admitted; its channel is open."""

    node: NodeId
    public: bytes
    name: str
    address: str
    length: int
    min_price_micro: int = 0
    """For less than this a unit of work it does not want any."""
    line: tuple[Handover, ...] = ()
    """How its key changed since the log last heard of it."""


class Said(msgspec.Struct, frozen=True):
    node: NodeId
    message: Message


class Lost(msgspec.Struct, frozen=True):
    """A node's channel broke."""

    node: NodeId


class Ticked(msgspec.Struct, frozen=True):
    pass


class BlobFetched(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator itself has (or could not get) a blob it asked for."""

    at: int
    blob: BlobId
    size_bytes: int | None
    state: str | None = None
    """Of a snapshot: the hash of the state in it."""
    pushed: bool = False
    """None of those who should hold it gave it; its author did, when asked."""


class Coordinators(msgspec.Struct, frozen=True):
    """Where nodes may find one, should this one be gone."""

    addresses: tuple[str, ...]


class StopAsked(msgspec.Struct, frozen=True):
    reason: str


class RewindAsked(msgspec.Struct, frozen=True):
    to: int
    reason: str


class RevokeAsked(msgspec.Struct, frozen=True):
    """No key speaks for a node any more: by its own word, or because the organiser says so."""

    node: NodeId
    reason: str
    word: Signed | None = None


class BanAsked(msgspec.Struct, frozen=True):
    """Keep a node out until then; 0 lets it in again."""

    node: NodeId
    until_ms: int
    reason: str


class FundAsked(msgspec.Struct, frozen=True):
    """More budget for the run's credit."""

    add_micro: int
    reason: str


class GraftAsked(msgspec.Struct, frozen=True):
    """News of the parent run, whose blob is in the coordinator's store: they enter when the next round ends."""

    graft: Graft


class RegionsDecided(msgspec.Struct, frozen=True):
    """The pool's machines are grouped anew."""

    regions: Regions


Event = (
    Arrived
    | Said
    | Lost
    | Ticked
    | BlobFetched
    | StopAsked
    | RewindAsked
    | FundAsked
    | BanAsked
    | RevokeAsked
    | GraftAsked
    | RegionsDecided
    | Coordinators
)

# --- effects, to be carried out in order ---------------------------------------------------------------


class Append(msgspec.Struct, frozen=True):
    """Make an entry durable. Everything after it in the list waits for that."""

    position: int
    encoded: bytes
    kind: str
    """What it is: "seal", "plan", ...; names the points at which tests kill the process."""


class EnterCredit(msgspec.Struct, frozen=True):
    """Enter what an entry is worth in the ledger, and give those who earned it their receipts."""

    position: int
    head: str
    lines: tuple[Line, ...]


class SendReceipt(msgspec.Struct, frozen=True):
    """Give a node its last receipt again: it may have missed it."""

    node: NodeId


class Keep(msgspec.Struct, frozen=True):
    key: str
    value: bytes


class Drop(msgspec.Struct, frozen=True):
    key: str


class Send(msgspec.Struct, frozen=True):
    node: NodeId
    message: Message


class SendEntries(msgspec.Struct, frozen=True):
    """Send a page of the log from `start`."""

    node: NodeId
    start: int


class Tell(msgspec.Struct, frozen=True):
    """Send to every connected node."""

    message: Message


class FetchBlob(msgspec.Struct, frozen=True):
    """Bring a blob here, then report `BlobFetched`."""

    at: int
    blob: BlobId
    size_bytes: int | None
    holders: tuple[NodeId, ...]
    is_state: bool = False
    """A snapshot: report the hash of the state in it, too."""
    is_missed: bool = False
    """Nodes cannot get it: ask everyone at once, and wait only for those who are live."""


class Archive(msgspec.Struct, frozen=True):
    """Fetch the updates of the seal at `position`, if they can be had: (blob, size, holders) each."""

    position: int
    updates: tuple[tuple[BlobId, int, tuple[NodeId, ...]], ...]


class Dismiss(msgspec.Struct, frozen=True):
    node: NodeId
    refuse: Refuse


class Prune(msgspec.Struct, frozen=True):
    """Blobs that nobody needs any more may go."""


Effect = (
    Append
    | EnterCredit
    | SendReceipt
    | Keep
    | Drop
    | Send
    | SendEntries
    | Tell
    | FetchBlob
    | Archive
    | Dismiss
    | Prune
)
