"""What the node's machine hears and what it wants done: plain values, no behaviour."""

from __future__ import annotations

import msgspec

from shoal.base.host import Channel
from shoal.base.ids import BlobId
from shoal.runlog.entries import Claim, Genesis
from shoal.runlog.view import SavedState, Step
from shoal.runlog.work import Planned
from shoal.wire.ballots import AskVote, Propose
from shoal.wire.messages import Message
from shoal.wire.signed import Signed


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """An update that is durable here: its claim as signed, never encoded anew."""

    claim: Claim
    signed: Signed


# --- events ------------------------------------------------------------------------------------------


class Connected(msgspec.Struct, frozen=True):
    pass


class Disconnected(msgspec.Struct, frozen=True):
    pass


class Heard(msgspec.Struct, frozen=True):
    message: Message


class Asked(msgspec.Struct, frozen=True):
    """A coordinator wants this node's vote, or wants it to store an entry; the answer goes back the same way."""

    message: AskVote | Propose
    channel: Channel


class Ticked(msgspec.Struct, frozen=True):
    pass


class Prepared(msgspec.Struct, frozen=True):
    """The data is here and the model is built."""


class HasState(msgspec.Struct, frozen=True, kw_only=True):
    """A state was loaded or folded (or saved once more, as a snapshot); it stands at `at`."""

    at: int
    state: str
    snapshot: BlobId | None
    validation: float | None


class Trained(msgspec.Struct, frozen=True):
    outgoing: Outgoing


class TrainingEnded(msgspec.Struct, frozen=True):
    """The training task for this plan is over, whether it made an update or was stopped."""

    plan: int


class Published(msgspec.Struct, frozen=True):
    """Others hold the update: their receipts."""

    sequence: int
    receipts: tuple[Signed, ...]


class ShardsFolded(msgspec.Struct, frozen=True):
    """This node's digests of the seal at `at` are durable: its word on them."""

    at: int
    word: Signed


class CannotFetch(msgspec.Struct, frozen=True):
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


class Record(msgspec.Struct, frozen=True):
    """Make an entry durable in this node's copy of the log."""

    position: int
    encoded: bytes


class KeepReceipt(msgspec.Struct, frozen=True):
    """Make the coordinator's word on this node's earnings durable."""

    page: int
    encoded: bytes


class SendUp(msgspec.Struct, frozen=True):
    message: Message


class Prepare(msgspec.Struct, frozen=True):
    genesis: Genesis


class Load(msgspec.Struct, frozen=True):
    """Fetch and load a saved state."""

    saved: SavedState


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """Fetch a seal's updates and fold them."""

    step: Step
    snapshot: bool
    evaluate: bool


class FoldShards(msgspec.Struct, frozen=True):
    """Make the digests of a seal that this node was drawn for; then report `ShardsFolded`."""

    step: Step


class CancelState(msgspec.Struct, frozen=True):
    """Whatever is being loaded or folded is not wanted any more."""


class Adopt(msgspec.Struct, frozen=True):
    """The state just made is the current one: merge it into the local model."""

    at: int
    working: bool = False
    """In the middle of an assignment."""
    settled: int = -1
    """Updates of this node up to this sequence are in the state, or came to nothing; later ones are on their way."""


class StartOver(msgspec.Struct, frozen=True):
    """What was trained locally came to nothing: begin again from the current state."""


class SaveSnapshot(msgspec.Struct, frozen=True):
    """Store the current state as a blob and report `HasState` with it."""

    at: int


class SendAttestation(msgspec.Struct, frozen=True):
    at: int
    state: str
    snapshot: BlobId | None
    validation: float | None


class Train(msgspec.Struct, frozen=True):
    planned: Planned


class StopTraining(msgspec.Struct, frozen=True):
    pass


class Publish(msgspec.Struct, frozen=True):
    """Have others hold the update; the coordinator among them, if it asked for that."""

    outgoing: Outgoing
    to_coordinator: bool = False


class PushTo(msgspec.Struct, frozen=True):
    """The coordinator asked for a blob."""

    blob: BlobId


class Prune(msgspec.Struct, frozen=True):
    pass


class Disputed(msgspec.Struct, frozen=True):
    """An entry, signed by the coordinator, that differs from ours at the same position."""

    position: int
    other: bytes


class Finish(msgspec.Struct, frozen=True):
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
