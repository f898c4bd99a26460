"""What a run's log is made of: the entries, and the signed statements of nodes inside them.

In flow facts decided by the coordinator; out flow immutable values. Invariant: the format already carries
fragments, terms and digests, so that streaming, failover and digest folding change no struct here; a field
may be added with a default, none may change its meaning. What a node signs has no unknown fields: skipping a
deeply nested one would succeed or fail by the depth of the reader's stack, and readers must agree.
"""

from __future__ import annotations

import msgspec

from shoal.base.ids import BlobId, NodeId, RunId
from shoal.base.layout import Layout
from shoal.data.manifest import Manifest
from shoal.wire.signed import Signed


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place in the log: everything up to and including this entry."""

    position: int
    hash: str


class DataRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sample counters [start, start + count), see `data.assignment`."""

    start: int
    count: int


class MergeTaken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new global version that entered the local model in mid-training: its seal, and the local step."""

    position: int
    step: int


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node's word on one update, signed. The blob is durable and pushed before the claim leaves."""

    run: RunId
    node: NodeId
    sequence: int
    round: int
    plan: int
    """Position of the plan this work answers."""
    head: Head
    """The log the node stood on."""
    base: tuple[tuple[int, int], ...]
    """(fragment index, version) of every fragment the update touches."""
    merges: tuple[MergeTaken, ...] = ()
    steps: int
    samples: int
    tokens: int
    data: tuple[DataRange, ...]
    local_before: str
    local_after: str
    """Hashes of inner optimiser, error feedback and RNG around the work."""
    blob: BlobId
    size_bytes: int
    loss: float
    pieces: tuple[BlobId, ...] = ()
    """Where the update left in coded pieces: their blobs, in order."""
    pieces_needed: int = 0
    """How many of them give it back."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A seeder's promise that it holds a blob durably and serves it."""

    run: RunId
    holder: NodeId
    blob: BlobId
    size_bytes: int
    """What the blob really has; a claim that says otherwise gets no valid receipt."""


class Attestation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node's word on the state it has after a transition."""

    run: RunId
    node: NodeId
    at: Head
    """The seal or rewind that led there."""
    state: str
    how: str = "folded"
    """`folded` from all updates, or `adopted` from digests, whose folders' words are in the log; each counts where the
    log has led everybody that way."""
    snapshot: BlobId | None = None
    """The state's blob, where this version is one to keep."""
    validation: float | None = None
    """Validation loss, from the member whose turn it was to evaluate."""


class Folding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder's word on the shards of a seal that it was drawn for. Its digests, and the residuals that they leave,
    are durable before it leaves; a shard that is not named is one it could not fold."""

    run: RunId
    node: NodeId
    at: Head
    """The seal."""
    items: tuple[tuple[int, BlobId, int], ...]
    """(number of the shard, its digest, bytes of that), in order."""


class Screening(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A screener's word on how odd each update of a seal is. It accuses nobody: it aims audits, see `audit`."""

    run: RunId
    node: NodeId
    at: Head
    """The seal."""
    scores: tuple[int, ...]
    """In the seal's order, in thousandths of a standard deviation."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An auditor's word on a claim that it has run again, with what it takes to do so once more: the claim names the
    private state to begin from, and the log everything else."""

    run: RunId
    node: NodeId
    at: Head
    """The seal that accepted the claim."""
    author: NodeId
    sequence: int
    outcome: str
    """`upheld`, `forged`, or `withheld` where the author did not show the private state."""
    distance: float = 0.0
    """Between the claimed update and the auditor's, as a share of the longer one."""
    tolerance: float = 0.0
    replayed: BlobId | None = None
    """The auditor's own update, where it accuses."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of another run that this one begins from, see `checkpoint.vertices`."""

    vertex: str
    run: RunId
    at: int
    state: str
    weight: float = 1.0
    """Its part in the mean of all."""


# --- bodies of entries -------------------------------------------------------------------------------


class Genesis(msgspec.Struct, frozen=True, kw_only=True, tag="genesis"):
    """Position 0: everything needed to begin, and who may append."""

    coordinator: bytes
    """Public key of the sequencer."""
    recipe: str
    """The validated recipe as JSON."""
    manifest: Manifest
    layout: Layout
    state: str
    snapshot: BlobId
    snapshot_bytes: int
    arithmetic: int = 1
    """The version of the fold's arithmetic, see `replica.fold`."""
    parent: RunId = RunId("")
    """The run that this one is a region of; "" if it stands alone."""
    origins: tuple[Origin, ...] = ()
    """The checkpoints that it begins from: one for a fork, several for a merge; () if it begins afresh."""


class Joined(msgspec.Struct, frozen=True, kw_only=True, tag="joined"):
    node: NodeId
    public: bytes
    name: str = ""


class Left(msgspec.Struct, frozen=True, kw_only=True, tag="left"):
    node: NodeId
    reason: str


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One member's work in a round. `steps` count towards its claim; the data allows for `spare` more."""

    node: NodeId
    data: DataRange
    steps: int
    batch: int
    spare: int = 0
    staleness: int = 0
    """How many rounds after its plan's a claim for this work may still be sealed."""
    window_ms: int = 0
    """Train for so long, and `steps` at most; 0 to train `steps` however long it takes."""
    thin: int = 1
    """Its update keeps one in so many of the values that the recipe's codec would, where that chooses values."""
    expected_ms: int = 0
    """When the planner expects its claim, after the plan; 0 if it does not say."""
    reason: str = ""
    """Why this much, in words."""
    coded: bool = False
    """Its update is to leave in coded pieces, as the recipe's `storage.pieces` says."""
    choice: int | msgspec.UnsetType = msgspec.UNSET
    """Its update is encoded with the so-many-th of the recipe's `codec.choices`. Not written where it is encoded with
    the recipe's own, so that a plan that chooses nothing has the bytes that it always had."""

    @property
    def codec(self) -> int:
        """The number of its codec: 0 for the recipe's own, else its choice."""
        return 0 if isinstance(self.choice, msgspec.UnsetType) else self.choice


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag="plan"):
    """Who trains what from now on. A later plan for the same round adds to an earlier one; a plan without members
    opens a round for work that is still out from earlier ones."""

    round: int
    step: int
    """Inner steps per member before this round: where learning-rate schedules stand."""
    members: tuple[Assignment, ...]
    deadline_ms: int
    fragments: tuple[int, ...]
    reason: str
    weights: str = "samples"
    """By what the claims for this plan are weighed, see `runlog.weights`."""
    rate: float = 1.0
    """What the outer optimiser's rate is multiplied by in this round's step; above 0, and 1 at most."""
    folders: int = 0
    """How many members fold each shard of the round, for everybody; 0 if everybody folds everything."""
    shards: int = 0
    """Into about how many shards the updates of such a round are cut, see `runlog.sharding`."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """An update that counts, with an integer weight and the seeders that hold it."""

    claim: Signed
    weight: int
    receipts: tuple[Signed, ...]


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    node: NodeId
    sequence: int
    reason: str


class Seal(msgspec.Struct, frozen=True, kw_only=True, tag="seal"):
    """The transition of a round: these updates, in this order, with these weights."""

    round: int
    fragments: tuple[int, ...]
    accepted: tuple[Accepted, ...]
    rejected: tuple[Rejected, ...]
    reason: str
    whole: int = 0
    """The weight of the whole fleet, where these updates are but a part of it; 0 if they are the whole."""
    pairs: bool = False
    """True if the state stays as it is, and the authors of these updates meet two by two, see `runlog.pairs`."""


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """One shard's folded update, published by the nodes drawn to fold it."""

    fragment: int
    start: int
    stop: int
    blob: BlobId
    folders: tuple[NodeId, ...]
    """Those who signed for it."""
    size_bytes: int = 0


class Digests(msgspec.Struct, frozen=True, kw_only=True, tag="digests"):
    """Folded shards of the seal at `seal`, for nodes that do not fold every update themselves. Shards that are not
    listed are folded by everybody."""

    seal: int
    items: tuple[Digest, ...]
    """What the words come to, see `runlog.sharding.agreed`."""
    words: tuple[Signed, ...] = ()
    """The folders' words, each a `Folding`."""
    reason: str = ""


class Attestations(msgspec.Struct, frozen=True, kw_only=True, tag="attestations"):
    items: tuple[Signed, ...]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """A state that a quorum attested and that is stored, so that joiners may begin there."""

    at: int
    """Position of the seal (or 0) whose state this is."""
    state: str
    blob: BlobId
    size_bytes: int
    holders: tuple[NodeId, ...]


class Graft(msgspec.Struct, frozen=True, kw_only=True, tag="graft"):
    """News of the parent run enter its region: the parameters move by what the blob holds, see `replica.graft`."""

    parent: Head
    """The state of the parent run that they lead to, by the place in its log."""
    blob: BlobId
    size_bytes: int


class Rewind(msgspec.Struct, frozen=True, kw_only=True, tag="rewind"):
    """The state is again what it was after the seal at `to` (0: the beginning)."""

    to: int
    reason: str


class Stopped(msgspec.Struct, frozen=True, kw_only=True, tag="stopped"):
    """The run is over. Claims that were acknowledged and came to nothing are settled here."""

    reason: str
    rejected: tuple[Rejected, ...] = ()


class Funded(msgspec.Struct, frozen=True, kw_only=True, tag="funded"):
    """The run may earn so much more than its recipe says, see `credit`."""

    add_micro: int
    reason: str = ""


class Audits(msgspec.Struct, frozen=True, kw_only=True, tag="audits"):
    """What members found in others' claims. Whether they were drawn for it, `audit.docket` says."""

    screenings: tuple[Signed, ...] = ()
    verdicts: tuple[Signed, ...] = ()


class Ban(msgspec.Struct, frozen=True, kw_only=True, tag="ban"):
    """A node may not take part until then, by the coordinator's clock; 0 lifts an earlier ban."""

    node: NodeId
    until_ms: int
    reason: str


class Rotated(msgspec.Struct, frozen=True, kw_only=True, tag="rotated"):
    """Another key speaks from here on for a member or the coordinator, see `runlog.keys`. The coordinator's own is the
    first entry that its new key signs."""

    node: NodeId
    line: tuple[tuple[Signed, Signed], ...]
    """One `Succession` after the other, each signed by the old key and by the new one."""


class Revoked(msgspec.Struct, frozen=True, kw_only=True, tag="revoked"):
    """No key speaks for a member any more: by its own word, or by the coordinator's."""

    node: NodeId
    reason: str
    word: Signed | None = None
    """The member's `Revocation`; None where the organiser decided it."""


class PlannedRegion(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that train together; their hub is the run's member for all of them."""

    number: int
    """Names it. Another hub means another region, with the number after the highest that there was."""
    hub: NodeId
    members: tuple[NodeId, ...]
    """All of its machines, the hub's own too."""
    heirs: tuple[NodeId, ...] = ()
    """Who is the hub when it is gone, in order."""
    reason: str = ""


class Regions(msgspec.Struct, frozen=True, kw_only=True, tag="regions"):
    """How the pool's machines are grouped from here on, all of them: where a coordinator begins regions by itself."""

    items: tuple[PlannedRegion, ...]
    reason: str


Body = (
    Genesis
    | Joined
    | Left
    | Plan
    | Seal
    | Digests
    | Attestations
    | Snapshot
    | Graft
    | Rewind
    | Stopped
    | Funded
    | Audits
    | Ban
    | Rotated
    | Revoked
    | Regions
)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One link of the chain; stored as `Signed(payload = this, signature of the coordinator)`."""

    run: RunId
    position: int
    previous: str
    term: int
    """Rises with every start of a coordinator; an old leader's entries are refused."""
    time_ms: int
    body: Body
