"""What a log says: members, versions, the open plan, the path of states. A pure fold over entries.

In flow entries in order; out flows the run as everybody must see it. Invariant: `apply` either accepts an
entry wholly, having checked every signature and rule in it, or raises `BadEntry` and changes nothing; so the
coordinator before it appends, a node as it follows, and `verify` afterwards all use this one check.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.base.ids import BlobId, NodeId, RunId
from shoal.data.manifest import blobs as data_blobs
from shoal.runlog.chain import NO_HEAD, BadEntry, Link, check_link, genesis_key, read_link
from shoal.runlog.entries import (
    Accepted,
    Assignment,
    Attestation,
    Attestations,
    Body,
    Claim,
    DataRange,
    Digests,
    Genesis,
    Head,
    Joined,
    Left,
    Plan,
    Rejected,
    Rewind,
    Seal,
    Snapshot,
    Stopped,
)
from shoal.runlog.statements import fair_weight, open_attestation, open_claim, open_receipts, require
from shoal.wire.identity import node_id

MAX_TEXT = 200
ASSIGNMENTS_KEPT = 8
KEPT_SNAPSHOTS = 2
"""Saved states that everybody keeps, with the updates after them; older ones may be pruned."""


@dataclass(slots=True)
class Member:
    """A node that was admitted to the run."""

    node: NodeId
    public: bytes
    name: str
    present: bool = True
    last_sequence: int = -1
    """The highest sequence of its claims that a seal has settled, either way."""
    counted_to: int = 0
    """Sample counters below this are counted, or given up."""
    assigned: list[DataRange] = field(default_factory=list)
    """The samples of its latest assignments."""


@dataclass(frozen=True, slots=True)
class Update:
    """An accepted claim, opened: what the fold needs of it."""

    claim: Claim
    weight: int
    holders: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One transition on the path from the beginning to now: a seal that stands."""

    position: int
    round: int
    fragments: tuple[int, ...]
    updates: tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class SavedState:
    """A state to begin from: genesis, or a snapshot entry."""

    at: int
    state: str
    blob: BlobId
    size_bytes: int
    holders: tuple[NodeId, ...]


class RunView:
    """The run as its log tells it. Read its fields freely; change them only through `apply`."""

    def __init__(self) -> None:
        self.run = RunId("")
        self.genesis: Genesis | None = None
        self.head = NO_HEAD
        self.term = 0
        self.time_ms = 0
        self.hashes: list[str] = []
        self.members: dict[NodeId, Member] = {}
        self.round = 0
        self.versions: list[int] = []
        self.path: list[Step] = []
        self.plan: Plan | None = None
        self.plan_position = -1
        self.planned: dict[NodeId, dict[int, Assignment]] = {}
        """This round's members, with their assignments by the position of the plan."""
        self.next_counter = 0
        self.snapshots: list[SavedState] = []
        self.attested: dict[int, dict[NodeId, Attestation]] = {}
        self.stopped: str | None = None
        self._kept: list[SavedState] | None = None
        self.began_ms = 0
        """When the first round was planned, by the coordinator's clock."""

    # --- reading ---------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        return self.head.position + 1

    @property
    def at(self) -> int:
        """The position whose state is current: the last standing seal, or 0."""
        return self.path[-1].position if self.path else 0

    @property
    def steps_done(self) -> int:
        """Rounds that stand."""
        return len(self.path)

    def public_of(self, node: NodeId) -> bytes | None:
        """The key of a member or of the coordinator."""
        member = self.members.get(node)
        if member is not None:
            return member.public
        coordinator = self.genesis.coordinator if self.genesis else b""
        return coordinator if node_id(coordinator) == node else None

    def next_step(self, at: int) -> Step | None:
        """The transition that follows the state at `at`, or None if there is none or `at` was undone."""
        if at == 0:
            return self.path[0] if self.path else None
        index = self.index_of(at)
        return self.path[index + 1] if index is not None and index + 1 < len(self.path) else None

    def index_of(self, at: int) -> int | None:
        """Where on the path the seal at this position stands, or None if it does not (any more)."""
        for index in range(len(self.path) - 1, -1, -1):
            if self.path[index].position == at:
                return index
            if self.path[index].position < at:
                break
        return None

    def stands(self, at: int) -> bool:
        """True if the state at this position is on the path to the current one."""
        return at == 0 or self.index_of(at) is not None

    def best_start(self) -> SavedState:
        """The latest saved state that still stands."""
        return self.kept_states()[-1]

    def kept_states(self) -> list[SavedState]:
        """The saved states that everybody keeps, oldest first: the last few that stand. (Not the last logged:
        the snapshot of an older state may be stored later.)"""
        if self._kept is None:
            standing = [saved for saved in self.snapshots if self.stands(saved.at)]
            self._kept = sorted(standing, key=lambda saved: saved.at)[-KEPT_SNAPSHOTS:]
        return self._kept

    def may_rewind(self, to: int) -> bool:
        """True if the state at this position stands and can be rebuilt from what everybody keeps, and the run is not
        over with its final state saved."""
        over = self.stopped is not None and self.best_start().at == self.at
        return not over and self.stands(to) and to >= self.kept_states()[0].at

    def needed_blobs(self) -> set[BlobId]:
        """Blobs that somebody may still need: the kept states, every update after them, and the data."""
        kept = self.kept_states()
        needed = {saved.blob for saved in kept}
        later = [step for step in self.path if step.position > kept[0].at]
        needed.update(update.claim.blob for step in later for update in step.updates)
        if self.genesis:
            needed.update(data_blobs(self.genesis.manifest))
        return needed

    # --- applying --------------------------------------------------------------------------------------

    def apply(self, link: Link) -> None:
        """Take the next entry. Raises `BadEntry`; then nothing has changed."""
        entry, body = link.entry, link.entry.body
        if self.genesis is None:
            public, run = genesis_key(link), entry.run
        else:
            public, run = self.genesis.coordinator, self.run
        check_link(link, self.head, self.term, run, public)
        self.check(body)
        self._take(body, entry.position)
        self.run, self.head, self.term, self.time_ms = run, link.head, entry.term, entry.time_ms
        self.hashes.append(link.hash)
        if isinstance(body, Plan) and not self.began_ms:
            self.began_ms = entry.time_ms

    def check(self, body: Body) -> None:
        """Raise `BadEntry` unless this body may come next."""
        if (self.genesis is None) != isinstance(body, Genesis):
            raise BadEntry("is a second genesis" if self.genesis else "comes before the genesis entry")
        if self.stopped is not None and not isinstance(body, Attestations | Snapshot | Rewind):
            raise BadEntry("comes after the run was stopped")
        match body:
            case Joined():
                require(node_id(body.public) == body.node, "names a member whose id is not its key's hash")
                require(len(body.name) <= MAX_TEXT, "has a name that is too long")
            case Left():
                require(body.node in self.members, f"lets {body.node} leave, who never joined")
                require(len(body.reason) <= MAX_TEXT, "has a reason that is too long")
            case Plan():
                self._check_plan(body)
            case Seal():
                self._check_seal(body)
            case Digests():
                require(self.index_of(body.seal) is not None, "has digests of a seal that does not stand")
            case Attestations():
                for item in body.items:
                    open_attestation(self, item)
            case Snapshot():
                require(self.stands(body.at), f"snapshots position {body.at}, which does not stand")
            case Rewind():
                require(
                    self.may_rewind(body.to), f"rewinds to {body.to}, which does not stand or is not kept"
                )
            case Stopped():
                self._check_rejected(body.rejected)
            case Genesis():
                pass

    def _check_plan(self, plan: Plan) -> None:
        require(plan.round == self.round, f"plans round {plan.round} where {self.round} is next")
        fragments = range(len(self.versions))
        require(
            bool(plan.fragments) and all(f in fragments for f in plan.fragments), "plans unknown fragments"
        )
        require(len(set(plan.fragments)) == len(plan.fragments), "plans one fragment twice")
        names = [assignment.node for assignment in plan.members]
        require(len(set(names)) == len(names), "assigns one member twice")
        start = self.next_counter
        for assignment in plan.members:
            require(assignment.node in self.members, f"assigns work to {assignment.node}, not a member")
            whole = assignment.batch > 0 and assignment.steps > 0 and assignment.spare >= 0
            require(whole, f"assigns {assignment.node} less than one step")
            span = assignment.batch * (assignment.steps + assignment.spare)
            require(
                assignment.data.start >= start and assignment.data.count == span,
                f"assigns {assignment.node} samples that overlap others'",
            )
            start = assignment.data.start + assignment.data.count

    def _check_seal(self, seal: Seal) -> None:
        if self.plan is None:
            raise BadEntry("seals a round that was not planned")
        require(seal.fragments == self.plan.fragments, "seals other fragments than were planned")
        require(seal.round == self.round, f"seals round {seal.round} where {self.round} is next")
        require(bool(seal.accepted), "seals no update")
        nodes = [self.open_accepted(item).claim.node for item in seal.accepted]
        require(len(set(nodes)) == len(nodes), "counts one node's work twice")
        self._check_rejected(seal.rejected)

    def _check_rejected(self, rejected: tuple[Rejected, ...]) -> None:
        for rejection in rejected:
            require(rejection.node in self.members, f"rejects {rejection.node}, not a member")
            require(len(rejection.reason) <= MAX_TEXT, "has a reason that is too long")

    def open_accepted(self, item: Accepted) -> Update:
        """An accepted update with its receipts checked. Raises `BadEntry`."""
        claim = open_claim(self, item.claim)
        assignment = self.planned[claim.node][claim.plan]
        require(
            0 < item.weight <= fair_weight(claim, assignment), "gives an update another weight than its own"
        )
        return Update(claim, item.weight, open_receipts(self, claim, item.receipts))

    def _take(self, body: Body, position: int) -> None:
        if isinstance(body, Genesis | Snapshot | Rewind):
            self._kept = None
        match body:
            case Genesis():
                self.genesis = body
                self.versions = [0] * len(body.layout.fragments)
                saved = SavedState(0, body.state, body.snapshot, body.snapshot_bytes, ())
                self.snapshots.append(saved)
            case Joined():
                member = self.members.get(body.node)
                if member is None:
                    self.members[body.node] = Member(body.node, body.public, body.name)
                else:
                    member.present = True
            case Left():
                self.members[body.node].present = False
            case Plan():
                self.plan, self.plan_position = body, position
                for item in body.members:
                    self.planned.setdefault(item.node, {})[position] = item
                    assigned = self.members[item.node].assigned
                    assigned[:] = [*assigned, item.data][-ASSIGNMENTS_KEPT:]
                if body.members:
                    last = body.members[-1].data
                    self.next_counter = last.start + last.count
            case Seal():
                self._take_seal(body, position)
            case Attestations():
                for signed in body.items:
                    word = open_attestation(self, signed)
                    self.attested.setdefault(word.at.position, {})[word.node] = word
            case Snapshot():
                saved = SavedState(body.at, body.state, body.blob, body.size_bytes, body.holders)
                self.snapshots.append(saved)
            case Rewind():
                while self.path and self.path[-1].position > body.to:
                    self.path.pop()
                self.versions = [version + 1 for version in self.versions]
                self._close_round()
            case Stopped():
                self.stopped = body.reason
                self._settle_rejected(body.rejected)
                self._close_round()
            case Digests():
                pass

    def _take_seal(self, seal: Seal, position: int) -> None:
        updates = tuple(self.open_accepted(item) for item in seal.accepted)
        for update in updates:
            member = self.members[update.claim.node]
            member.last_sequence = update.claim.sequence
            member.counted_to = update.claim.data[-1].start + update.claim.data[-1].count
        self._settle_rejected(seal.rejected)
        self.path.append(Step(position, seal.round, seal.fragments, updates))
        for fragment in seal.fragments:
            self.versions[fragment] += 1
        self.round += 1
        self._close_round()

    def _settle_rejected(self, rejected: tuple[Rejected, ...]) -> None:
        for rejection in rejected:
            member = self.members[rejection.node]
            member.last_sequence = max(member.last_sequence, rejection.sequence)

    def _close_round(self) -> None:
        self.plan, self.plan_position, self.planned = None, -1, {}


@dataclass(frozen=True, slots=True)
class Finding:
    """The first place where a log does not hold."""

    position: int
    what: str


def verify_log(entries: list[bytes], run: RunId | None = None) -> tuple[RunView, Finding | None]:
    """Check a whole log. The view stands after the last good entry; a finding names the first bad one."""
    view = RunView()
    for position, encoded in enumerate(entries):
        try:
            link = read_link(encoded)
            if run is not None and link.entry.run != run:
                raise BadEntry(f"belongs to run {link.entry.run}, not {run}")
            view.apply(link)
        except BadEntry as error:
            return view, Finding(position, str(error))
    return view, None


def head_of(view: RunView, position: int) -> Head:
    """The head as it was at an earlier position."""
    return Head(position, view.hashes[position])
