"""The saved states of one run as vertices: what led to each, who made it, who vouches for it.

In flow a log's entries; out flow vertices, oldest first. Invariant: a pure function of the log, checked entry by entry
on the way; a vertex's id covers the whole log up to its state, so that two logs never share one by chance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from shoal.base.errors import ShoalError
from shoal.base.ids import BlobId, NodeId, RunId
from shoal.runlog.chain import BadEntry, Link, read_link
from shoal.runlog.entries import Attestation, Attestations, Genesis, Graft, Seal, Snapshot
from shoal.runlog.view import RunView, Step, Totals
from shoal.strategy.recipe import recipe_in_log
from shoal.wire.identity import node_id
from shoal.wire.signed import Signed, digest, parse

Weighing = Literal["count", "stake"]
WEIGHINGS: tuple[Weighing, ...] = ("count", "stake")
ID_DIGITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    node: NodeId
    name: str
    weight: int
    """The weight of its accepted updates since the parent."""
    share: float
    """Of all that entered since the parent; the shares of a vertex add up to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One signature under a state."""

    node: NodeId
    signature: str
    stake: int
    """The weight of the signer's accepted updates, in the whole log up to the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """Who signed for the state, of how many could have. Beyond two thirds it is a quorum."""

    votes: tuple[Vote, ...]
    voters: int
    """Members that were present when the state was saved, and those who signed besides."""
    stake: int
    """Of all voters."""

    def part(self, weighing: Weighing = "count") -> tuple[int, int]:
        """What signed, of what could have."""
        if weighing == "count":
            return len(self.votes), self.voters
        return sum(vote.stake for vote in self.votes), self.stake

    def reached(self, weighing: Weighing = "count") -> bool:
        """True if more than two thirds signed."""
        signed, all_of_it = self.part(weighing)
        return 3 * signed > 2 * all_of_it


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    rounds: float = 0.0
    steps: float = 0.0
    tokens: int = 0
    loss: float | None = None
    """The mean training loss of the last seal's updates, by weight."""
    validation: float | None = None
    """The last validation loss that was attested since the parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    id: str
    parents: tuple[str, ...]
    run: RunId
    run_name: str
    at: int
    """The position of the seal whose state this is; 0 for the beginning."""
    head: str
    """The hash of the log's entry there."""
    model: str
    """The state's BLAKE3 hash."""
    recipe: str
    """The hash of the run's recipe."""
    snapshot: BlobId
    size_bytes: int
    holders: tuple[NodeId, ...]
    contributors: tuple[Contributor, ...]
    metrics: Metrics
    quorum: Quorum
    time_ms: int
    stands: bool
    """False where a rewind undid it: a branch that ended."""
    weights: tuple[float, ...] = ()
    """Of the parents in a mean, where there are several."""

    @property
    def kind(self) -> str:
        if self.at:
            return "saved"
        return ("genesis", "fork", "merge")[min(2, len(self.parents))]


def vertex_id(run: RunId, head: str, state: str) -> str:
    return digest(f"shoal/vertex/{run}/{head}/{state}".encode())[:ID_DIGITS]


@dataclass(slots=True)
class _Saved:
    """A saved state, while the log is read."""

    at: int
    state: str
    blob: BlobId
    size_bytes: int
    holders: tuple[NodeId, ...]
    present: frozenset[NodeId]
    stakes: dict[NodeId, int]
    time_ms: int


@dataclass(slots=True)
class _Reading:
    view: RunView = field(default_factory=RunView)
    steps: dict[int, tuple[Step, int]] = field(default_factory=dict)
    """Every seal and graft there ever was, with the position of the state before it."""
    saved: dict[int, _Saved] = field(default_factory=dict)
    words: dict[int, dict[NodeId, tuple[Attestation, Signed]]] = field(default_factory=dict)
    stakes: dict[NodeId, int] = field(default_factory=dict)
    first: Signed | None = None

    def take(self, link: Link) -> None:
        before = self.view.at
        self.view.apply(link)
        body = link.entry.body
        match body:
            case Genesis():
                self.first = parse(link.encoded, Signed)
                self._save(0, body.state, body.snapshot, body.snapshot_bytes, (), link.entry.time_ms)
            case Seal() | Graft():
                step = self.view.path[-1]
                self.steps[step.position] = (step, before)
                for update in step.updates:
                    self.stakes[update.claim.node] = self.stakes.get(update.claim.node, 0) + update.weight
            case Attestations():
                for signed in body.items:
                    word = parse(signed.payload, Attestation)
                    if word is not None:
                        self.words.setdefault(word.at.position, {})[word.node] = (word, signed)
            case Snapshot():
                self._save(body.at, body.state, body.blob, body.size_bytes, body.holders, link.entry.time_ms)
            case _:
                pass

    def _save(
        self, at: int, state: str, blob: BlobId, size: int, holders: tuple[NodeId, ...], time_ms: int
    ) -> None:
        present = frozenset(node for node, member in self.view.members.items() if member.present)
        self.saved[at] = _Saved(at, state, blob, size, holders, present, dict(self.stakes), time_ms)


def vertices_of(entries: Iterable[bytes], run: RunId | None = None) -> list[Vertex]:
    """Every saved state of a log. Raises SH-LOG-01 where the log does not hold."""
    reading = _Reading()
    for position, encoded in enumerate(entries):
        try:
            link = read_link(encoded)
            if run is not None and link.entry.run != run:
                raise BadEntry(f"belongs to run {link.entry.run}, not {run}")
            reading.take(link)
        except BadEntry as error:
            name = (run or reading.view.run)[:12]
            raise ShoalError(
                "SH-LOG-01", f"run {name}: entry {position} {error}", "see where it breaks: shoal log verify"
            ) from None
    return [_vertex(reading, saved) for _, saved in sorted(reading.saved.items())]


def _vertex(reading: _Reading, saved: _Saved) -> Vertex:
    view = reading.view
    genesis = view.genesis
    assert genesis is not None
    stretch, parent = _stretch(reading, saved.at)
    origins = genesis.origins if saved.at == 0 else ()
    parents = (_id_at(reading, parent),) if saved.at else tuple(origin.vertex for origin in origins)
    return Vertex(
        id=_id_at(reading, saved.at),
        parents=parents,
        run=view.run,
        run_name=_name_in(genesis.recipe),
        at=saved.at,
        head=view.hashes[saved.at],
        model=saved.state,
        recipe=digest(genesis.recipe.encode()),
        snapshot=saved.blob,
        size_bytes=saved.size_bytes,
        holders=saved.holders,
        contributors=_contributors(reading, stretch),
        metrics=_metrics(reading, stretch),
        quorum=_quorum(reading, saved),
        time_ms=saved.time_ms,
        stands=view.stands(saved.at),
        weights=tuple(origin.weight for origin in origins) if len(origins) > 1 else (),
    )


def _stretch(reading: _Reading, at: int) -> tuple[list[Step], int]:
    """The steps that lead here from the nearest saved state before, the last first, and where that one is."""
    steps: list[Step] = []
    while at:
        step, before = reading.steps[at]
        steps.append(step)
        at = before
        if at in reading.saved:
            break
    return steps, at


def _id_at(reading: _Reading, at: int) -> str:
    return vertex_id(reading.view.run, reading.view.hashes[at], reading.saved[at].state)


def _contributors(reading: _Reading, stretch: list[Step]) -> tuple[Contributor, ...]:
    weights: dict[NodeId, int] = {}
    for step in stretch:
        for update in step.updates:
            weights[update.claim.node] = weights.get(update.claim.node, 0) + update.weight
    total, members = sum(weights.values()), reading.view.members
    return tuple(
        Contributor(node=node, name=members[node].name, weight=weight, share=weight / total)
        for node, weight in sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    )


def _metrics(reading: _Reading, stretch: list[Step]) -> Metrics:
    totals = stretch[0].totals if stretch else Totals()
    return Metrics(
        rounds=totals.rounds,
        steps=totals.steps,
        tokens=totals.tokens,
        loss=_loss(stretch),
        validation=_validation(reading, stretch),
    )


def _loss(stretch: list[Step]) -> float | None:
    updates = next((step.updates for step in stretch if step.updates), ())
    whole = sum(update.weight for update in updates)
    return sum(update.claim.loss * update.weight for update in updates) / whole if whole else None


def _validation(reading: _Reading, stretch: list[Step]) -> float | None:
    for step in stretch:
        words = reading.words.get(step.position, {})
        found = [word.validation for _, (word, _) in sorted(words.items()) if word.validation is not None]
        if found:
            return found[0]
    return None


def _quorum(reading: _Reading, saved: _Saved) -> Quorum:
    """Of the beginning, its founder's signature; of any other state, those of the nodes."""
    genesis = reading.view.genesis
    if saved.at == 0 and genesis is not None and reading.first is not None:
        founder = node_id(genesis.coordinator)
        vote = Vote(node=founder, signature=reading.first.signature.hex(), stake=1)
        return Quorum(votes=(vote,), voters=1, stake=1)
    words = reading.words.get(saved.at, {})
    votes = tuple(
        Vote(node=node, signature=signed.signature.hex(), stake=saved.stakes.get(node, 0))
        for node, (word, signed) in sorted(words.items())
        if word.state == saved.state
    )
    voters = saved.present | words.keys()
    return Quorum(votes=votes, voters=len(voters), stake=sum(saved.stakes.get(n, 0) for n in voters))


def _name_in(recipe: str) -> str:
    return recipe_in_log(recipe).name
