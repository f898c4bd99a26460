"""What the coordinator's machine hears and what it wants done: plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.base.ids import BlobId, NodeId
from shoal.credit.lines import Line
from shoal.runlog.entries import Graft
from shoal.runlog.keys import Handover
from shoal.wire.messages import Message, Refuse
from shoal.wire.signed import Signed


@dataclass(frozen=True, slots=True)
class Instant:
    """Now: on the process's own forward-going clock, and by the calendar."""

    now: float
    wall_ms: int


# --- events ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
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


@dataclass(frozen=True, slots=True)
class Said:
    node: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class Lost:
    """A node's channel broke."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Ticked:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobFetched:
    """The coordinator itself has (or could not get) a blob it asked for."""

    at: int
    blob: BlobId
    size_bytes: int | None
    state: str | None = None
    """Of a snapshot: the hash of the state in it."""
    pushed: bool = False
    """None of those who should hold it gave it; its author did, when asked."""


@dataclass(frozen=True, slots=True)
class Coordinators:
    """Where nodes may find one, should this one be gone."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopAsked:
    reason: str


@dataclass(frozen=True, slots=True)
class RewindAsked:
    to: int
    reason: str


@dataclass(frozen=True, slots=True)
class RevokeAsked:
    """No key speaks for a node any more: by its own word, or because the organiser says so."""

    node: NodeId
    reason: str
    word: Signed | None = None


@dataclass(frozen=True, slots=True)
class BanAsked:
    """Keep a node out until then; 0 lets it in again."""

    node: NodeId
    until_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class FundAsked:
    """More budget for the run's credit."""

    add_micro: int
    reason: str


@dataclass(frozen=True, slots=True)
class GraftAsked:
    """News of the parent run, whose blob is in the coordinator's store: they enter when the next round ends."""

    graft: Graft


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
    | Coordinators
)

# --- effects, to be carried out in order ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """Make an entry durable. Everything after it in the list waits for that."""

    position: int
    encoded: bytes
    kind: str
    """What it is: "seal", "plan", ...; names the points at which tests kill the process."""


@dataclass(frozen=True, slots=True)
class EnterCredit:
    """Enter what an entry is worth in the ledger, and give those who earned it their receipts."""

    position: int
    head: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Give a node its last receipt again: it may have missed it."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Keep:
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Drop:
    key: str


@dataclass(frozen=True, slots=True)
class Send:
    node: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class SendEntries:
    """Send a page of the log from `start`."""

    node: NodeId
    start: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Send to every connected node."""

    message: Message


@dataclass(frozen=True, slots=True)
class FetchBlob:
    """Bring a blob here, then report `BlobFetched`."""

    at: int
    blob: BlobId
    size_bytes: int | None
    holders: tuple[NodeId, ...]
    is_state: bool = False
    """A snapshot: report the hash of the state in it, too."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Fetch the updates of the seal at `position`, if they can be had: (blob, size, holders) each."""

    position: int
    updates: tuple[tuple[BlobId, int, tuple[NodeId, ...]], ...]


@dataclass(frozen=True, slots=True)
class Dismiss:
    node: NodeId
    refuse: Refuse


@dataclass(frozen=True, slots=True)
class Prune:
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
