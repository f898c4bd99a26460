"""What travels on the control channel between a node and the coordinator.

In flow typed values; out flow frames of MessagePack, each with the wire's version (see `versions`). Invariant: a frame
that is too long, of a version not spoken here or not one of these types never becomes a message.
"""

from __future__ import annotations

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.wire.ballots import AskVote, Follow, Followed, Propose, Stored, Vote
from shoal.wire.signed import Signed
from shoal.wire.versions import HERE, Speaks, version_error
from shoal.wire.versions import PROTOCOL as PROTOCOL

MAX_FRAME_BYTES = 4 << 20


class Challenge(msgspec.Struct, frozen=True, kw_only=True, tag="challenge"):
    """Coordinator's first word: prove who you are by signing this."""

    protocol: int
    """The oldest version of the wire that it speaks."""
    coordinator: NodeId
    nonce: bytes
    newest: int = 0
    """The newest; 0 for the oldest alone."""

    @property
    def speaks(self) -> Speaks:
        return Speaks(self.protocol, max(self.protocol, self.newest))


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Node's answer. `proof` is its signature over a `Proof`."""

    protocol: int
    """The version of the wire that this connection is to use: the newest that both speak."""
    run: RunId
    public: bytes
    token: str
    name: str
    address: str
    """Where its blobs are served; "" if it takes no inbound connections."""
    length: int
    """How many entries of the log it has."""
    proof: Signed
    min_price_micro: int = 0
    """For less than this a unit of work, in millionths of a credit, it does not want any."""
    probe: bool = False
    """Only ask whether it would be let in: it is answered as if it joined, and does not."""
    work: int = 0
    """The proof of work that the run asks for, see `wire.work`."""
    hybrid: bytes = b""
    """In a run with hybrid signatures: the node's first key with its second half."""
    line: tuple[bytes, ...] = ()
    """How its first key came to be followed by the one that signed the proof, see `runlog.keys`."""
    revoke: Signed | None = None
    """Its word that none of its keys counts any more; it does not join then."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Binds a node's key to this run, this coordinator and this connection."""

    run: RunId
    coordinator: NodeId
    nonce: bytes


class PeerAddress(msgspec.Struct, frozen=True):
    node: NodeId
    address: str


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    run: RunId
    heartbeat_s: float
    length: int


class Refuse(msgspec.Struct, frozen=True, kw_only=True, tag="refuse"):
    """The coordinator does not want this node (or this message), and says why."""

    code: str
    cause: str
    next_step: str
    work_bits: int = 0
    """A proof of so much work would let it in; 0 if none would."""
    hybrid: bool = False
    """A hybrid key would."""


class Peers(msgspec.Struct, frozen=True, kw_only=True, tag="peers"):
    """Who can be reached for blobs now, the coordinator last. Sent again until a heartbeat names its edition."""

    edition: int
    peers: tuple[PeerAddress, ...]
    coordinators: tuple[str, ...] = ()
    """Addresses at which a coordinator may answer, should this one be gone."""
    since: int = 0
    """0 for the whole list. Else `peers` are those who came or moved since that edition, and nobody without it gains by
    this message."""
    gone: tuple[NodeId, ...] = ()
    """Who went since."""


class Entries(msgspec.Struct, frozen=True, kw_only=True, tag="entries"):
    items: tuple[bytes, ...]


class NeedEntries(msgspec.Struct, frozen=True, kw_only=True, tag="need"):
    start: int


class PeerVitals(msgspec.Struct, frozen=True, array_like=True):
    """What a node measured of the way to a peer."""

    node: NodeId
    rtt_s: float
    jitter_s: float
    failed: float
    """The share of its requests there that failed, lately."""


class Vitals(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a node measured of itself and its line; 0 where it does not know. Nobody's word: to be bounded by
    `measure.reporting.believable`."""

    step_s: float = 0.0
    """What an inner step of `batch` samples takes it."""
    batch: int = 0
    memory_bytes: int = 0
    """That is free for training."""
    uptime_s: float = 0.0
    rtt_s: float = 0.0
    """To the coordinator and back."""
    jitter_s: float = 0.0
    loss: float = 0.0
    """The share of what it sent that had to be sent again."""
    failed: float = 0.0
    """The share of its requests to peers that failed, lately."""
    up_bytes_s: float = 0.0
    down_bytes_s: float = 0.0
    peers: tuple[PeerVitals, ...] = ()
    """A few of them, in turn."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """A node's sign of life, and what people want to see of it."""

    at: int
    """The seal its state stands at; -1 while it has none."""
    length: int
    peers: int
    """The edition of the peer list it has; 0 for none."""
    doing: str
    step: int = 0
    loss: float = 0.0
    tokens_per_s: float = 0.0
    up_bytes: int = 0
    down_bytes: int = 0
    device: str = ""
    paused: bool = False
    """It does not train now (somebody uses the machine): do not wait for it."""
    probe: int = 0
    """Comes back in the answer, for the sender to time."""
    vitals: Vitals | None = None
    spent: int = 0
    """In a private run: how many releases its ledger counts."""


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """The coordinator's answer to a heartbeat: your lease is renewed, the log is this long."""

    length: int
    probe: int = 0
    """The heartbeat's."""
    note: str = ""
    """Why the node is given no work, where it could have some; "" if nothing is in the way."""


class Offer(msgspec.Struct, frozen=True, kw_only=True, tag="offer"):
    """A claim with the storage receipts that make it sealable."""

    claim: Signed
    receipts: tuple[Signed, ...]


class ClaimAck(msgspec.Struct, frozen=True, kw_only=True, tag="claim-ack"):
    """`kept`: the claim is durable with the coordinator and will be accepted or rejected in a seal."""

    sequence: int
    kept: bool
    retry: bool = False
    """Not kept, but it may be with other receipts; the coordinator's own among them is always enough."""
    reason: str


class Attest(msgspec.Struct, frozen=True, kw_only=True, tag="attest"):
    attestation: Signed


class Folded(msgspec.Struct, frozen=True, kw_only=True, tag="folded"):
    """A folder's word on its shards of the seal whose digests are out. Sent again until the log has them."""

    word: Signed


class Audited(msgspec.Struct, frozen=True, kw_only=True, tag="audited"):
    """What a member found in others' claims: a `Screening` or a `Verdict`. Sent again until the log has it."""

    screening: Signed | None = None
    verdict: Signed | None = None


class Stuck(msgspec.Struct, frozen=True, kw_only=True, tag="stuck"):
    """The node cannot get a blob that the seal at `at` needs, from anyone."""

    at: int
    blob: BlobId
    seconds: float


class Rebuild(msgspec.Struct, frozen=True, kw_only=True, tag="rebuild"):
    """Your state at `at` is not what the quorum has: drop it and rebuild from a snapshot."""

    at: int


class PleasePush(msgspec.Struct, frozen=True, kw_only=True, tag="please-push"):
    """The coordinator wants a blob from a node that it cannot reach: push it here."""

    blob: BlobId


class Paid(msgspec.Struct, frozen=True, kw_only=True, tag="paid"):
    """What the node has earned so far, signed for it to keep: a `PayReceipt` of `credit.ledger`."""

    receipt: bytes


class Goodbye(msgspec.Struct, frozen=True, kw_only=True, tag="goodbye"):
    """The node leaves, on purpose."""

    reason: str


Message = (
    Challenge
    | Hello
    | Welcome
    | Refuse
    | Peers
    | Entries
    | NeedEntries
    | Heartbeat
    | Beat
    | Offer
    | ClaimAck
    | Attest
    | Folded
    | Audited
    | Stuck
    | Rebuild
    | PleasePush
    | Paid
    | Goodbye
    | AskVote
    | Vote
    | Propose
    | Stored
    | Follow
    | Followed
)


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    protocol: int
    message: Message


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Frame)
_version = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])


def encode(message: Message) -> bytes:
    """A frame. Raises SH-WIRE-01 if the message is larger than any receiver would take."""
    frame = _encoder.encode(_Frame(PROTOCOL, message))
    if len(frame) > MAX_FRAME_BYTES:
        raise ShoalError("SH-WIRE-01", f"a frame of {len(frame)} bytes", "send it in parts")
    return frame


def decode(frame: bytes) -> Message:
    """The message in hostile bytes. Raises SH-WIRE-01, or SH-JOIN-06 for another version's frame."""
    if len(frame) > MAX_FRAME_BYTES:
        raise ShoalError(
            "SH-WIRE-01", f"a frame of {len(frame)} bytes, over {MAX_FRAME_BYTES}", "check the peer's version"
        )
    try:
        decoded = _decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _check_version(frame)
        raise ShoalError("SH-WIRE-01", f"a garbled frame: {error}", "check the peer's version") from None
    if not HERE.oldest <= decoded.protocol <= HERE.newest:
        raise version_error(Speaks(decoded.protocol, decoded.protocol))
    return decoded.message


def _check_version(frame: bytes) -> None:
    try:
        protocol, _ = _version.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if not HERE.oldest <= protocol <= HERE.newest:
        raise version_error(Speaks(protocol, protocol))
