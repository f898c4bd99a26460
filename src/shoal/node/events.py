"""What the node's machine hears and what it wants done: plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.base.host import Channel
from shoal.base.ids import BlobId
from shoal.runlog.entries import Claim, Genesis
from shoal.runlog.view import SavedState, Step
from shoal.runlog.work import Planned
from shoal.wire.ballots import AskVote, Propose
from shoal.wire.messages import Message
from shoal.wire.signed import Signed


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """An update that is durable here: its claim as signed, never encoded anew."""

    claim: Claim
    signed: Signed


# --- events ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connected:
    pass


@dataclass(frozen=True, slots=True)
class Disconnected:
    pass


@dataclass(frozen=True, slots=True)
class Heard:
    message: Message


@dataclass(frozen=True, slots=True)
class Asked:
    """A coordinator wants this node's vote, or wants it to store an entry; the answer goes back the same way."""

    message: AskVote | Propose
    channel: Channel


@dataclass(frozen=True, slots=True)
class Ticked:
    pass


@dataclass(frozen=True, slots=True)
class Prepared:
    """The data is here and the model is built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HasState:
    """A state was loaded or folded (or saved once more, as a snapshot); it stands at `at`."""

    at: int
    state: str
    snapshot: BlobId | None
    validation: float | None


@dataclass(frozen=True, slots=True)
class Trained:
    outgoing: Outgoing


@dataclass(frozen=True, slots=True)
class TrainingEnded:
    """The training task for this plan is over, whether it made an update or was stopped."""

    plan: int


@dataclass(frozen=True, slots=True)
class Published:
    """Others hold the update: their receipts."""

    sequence: int
    receipts: tuple[Signed, ...]


@dataclass(frozen=True, slots=True)
class ShardsFolded:
    """This node's digests of the seal at `at` are durable: its word on them."""

    at: int
    word: Signed


@dataclass(frozen=True, slots=True)
class CannotFetch:
    at: int
    blob: BlobId
    seconds: float


Event = (
    Connected
    | Disconnected
    | Heard
    | Asked
    | Ticked
    | Prepared
    | HasState
    | Trained
    | TrainingEnded
    | Published
    | ShardsFolded
    | CannotFetch
)

# --- effects -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """Make an entry durable in this node's copy of the log."""

    position: int
    encoded: bytes


@dataclass(frozen=True, slots=True)
class KeepReceipt:
    """Make the coordinator's word on this node's earnings durable."""

    page: int
    encoded: bytes


@dataclass(frozen=True, slots=True)
class SendUp:
    message: Message


@dataclass(frozen=True, slots=True)
class Prepare:
    genesis: Genesis


@dataclass(frozen=True, slots=True)
class Load:
    """Fetch and load a saved state."""

    saved: SavedState


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Fetch a seal's updates and fold them."""

    step: Step
    snapshot: bool
    evaluate: bool


@dataclass(frozen=True, slots=True)
class FoldShards:
    """Make the digests of a seal that this node was drawn for; then report `ShardsFolded`."""

    step: Step


@dataclass(frozen=True, slots=True)
class CancelState:
    """Whatever is being loaded or folded is not wanted any more."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """The state just made is the current one: merge it into the local model."""

    at: int
    working: bool = False
    """In the middle of an assignment."""
    settled: int = -1
    """Updates of this node up to this sequence are in the state, or came to nothing; later ones are on their way."""


@dataclass(frozen=True, slots=True)
class StartOver:
    """What was trained locally came to nothing: begin again from the current state."""


@dataclass(frozen=True, slots=True)
class SaveSnapshot:
    """Store the current state as a blob and report `HasState` with it."""

    at: int


@dataclass(frozen=True, slots=True)
class SendAttestation:
    at: int
    state: str
    snapshot: BlobId | None
    validation: float | None


@dataclass(frozen=True, slots=True)
class Train:
    planned: Planned


@dataclass(frozen=True, slots=True)
class StopTraining:
    pass


@dataclass(frozen=True, slots=True)
class Publish:
    """Have others hold the update; the coordinator among them, if it asked for that."""

    outgoing: Outgoing
    to_coordinator: bool = False


@dataclass(frozen=True, slots=True)
class PushTo:
    """The coordinator asked for a blob."""

    blob: BlobId


@dataclass(frozen=True, slots=True)
class Prune:
    pass


@dataclass(frozen=True, slots=True)
class Disputed:
    """An entry, signed by the coordinator, that differs from ours at the same position."""

    position: int
    other: bytes


@dataclass(frozen=True, slots=True)
class Finish:
    reason: str


Effect = (
    Record
    | KeepReceipt
    | SendUp
    | Prepare
    | Load
    | Fold
    | FoldShards
    | CancelState
    | Adopt
    | StartOver
    | SaveSnapshot
    | SendAttestation
    | Train
    | StopTraining
    | Publish
    | PushTo
    | Prune
    | Disputed
    | Finish
)
