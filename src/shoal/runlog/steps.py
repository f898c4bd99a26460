"""The path of states that a log tells: each seal with its updates, and what was trained by then.

In flow checked seals; out flow frozen steps. Invariant: a step says everything that its fold depends on.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import msgspec

from shoal.base.ids import BlobId, NodeId
from shoal.runlog.entries import Claim, Digest, Graft
from shoal.runlog.pieces import Held
from shoal.runlog.sharding import Shard
from shoal.runlog.work import Planned


@dataclass(frozen=True, slots=True)
class Update:
    """An accepted claim, opened: what the fold needs of it."""

    claim: Claim
    weight: int
    holders: tuple[NodeId, ...]
    ages: tuple[int, ...] = ()
    """By fragment of the seal, how many versions it had moved on since the update's base; () if none has."""
    place: int = 0
    """How many seals stood when the work was planned."""
    work: Planned | None = None
    """The assignment that it answers."""
    pieces: Held = ()
    """Where it left in coded pieces, who holds which."""

    @property
    def codec(self) -> int:
        """Which of the recipe's codecs it is encoded with, see `Assignment.codec`."""
        return self.work.assignment.codec if self.work else 0


class PackedUpdates(Sequence[Update]):
    """Updates of a seal that is long past, as bytes: a quarter of the memory, opened anew by whoever asks."""

    __slots__ = ("_count", "_packed")

    def __init__(self, updates: Sequence[Update]) -> None:
        self._count, self._packed = len(updates), zlib.compress(msgspec.msgpack.encode(tuple(updates)), 1)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Update: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Update]: ...
    def __getitem__(self, index: int | slice) -> Update | Sequence[Update]:
        return self._open()[index]

    def __iter__(self) -> Iterator[Update]:
        return iter(self._open())

    def _open(self) -> tuple[Update, ...]:
        return _UPDATES.decode(zlib.decompress(self._packed))


_UPDATES = msgspec.msgpack.Decoder(tuple[Update, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How far the run is along its path, after some step of it."""

    rounds: float = 0.0
    """Updates of the whole fleet: a seal that is but a part of it counts for its part."""
    steps: float = 0.0
    """Inner steps of a typical member."""
    tokens: int = 0
    update_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One transition on the path from the beginning to now: a seal that stands."""

    position: int
    round: int
    fragments: tuple[int, ...]
    updates: Sequence[Update]
    whole: int = 0
    """See `Seal.whole`."""
    totals: Totals = Totals()
    rate: float = 1.0
    """See `Plan.rate`."""
    place: int = 0
    """How many seals stood before it."""
    pairs: bool = False
    """See `Seal.pairs`."""
    graft: Graft | None = None
    """Where it is no seal of this run's, but its parent's news."""
    shards: tuple[Shard, ...] = ()
    """Where it is folded through digests: what its updates are cut into, and by whom each is folded."""
    digests: tuple[Digest | None, ...] | None = None
    """By shard, its digest, or None if everybody folds it; None while the log does not say."""

    @property
    def settled(self) -> bool:
        """False while it depends on digests that are not in the log yet."""
        return not self.shards or self.digests is not None

    @property
    def adopted(self) -> bool:
        """True if some of it was folded by others."""
        return any(self.digests or ())

    @property
    def folded_by_all(self) -> tuple[int, ...]:
        """The shards that everybody folds."""
        return tuple(number for number, digest in enumerate(self.digests or ()) if digest is None)

    @property
    def sources(self) -> tuple[tuple[BlobId, int, tuple[NodeId, ...]], ...]:
        """What its state is made of: (blob, size, holders) of updates and of digests."""
        if self.graft is not None:
            return ((self.graft.blob, self.graft.size_bytes, ()),)
        found = [(d.blob, d.size_bytes, d.folders) for d in self.digests or () if d is not None]
        if not self.adopted or self.folded_by_all:
            claims = [(update.claim, update.holders) for update in self.folded]
            found += [(claim.blob, claim.size_bytes, (*held, claim.node)) for claim, held in claims]
        return tuple(found)

    @property
    def folded(self) -> Sequence[Update]:
        """The updates that move the state."""
        return () if self.pairs else self.updates

    @property
    def blobs(self) -> tuple[BlobId, ...]:
        """What moves the state, where it is not cut into shards."""
        return (self.graft.blob,) if self.graft else tuple(update.claim.blob for update in self.folded)


@dataclass(frozen=True, slots=True)
class SavedState:
    """A state to begin from: genesis, or a snapshot entry."""

    at: int
    state: str
    blob: BlobId
    size_bytes: int
    holders: tuple[NodeId, ...]


def position_of(step: Step) -> int:
    return step.position


def added(before: Totals, updates: tuple[Update, ...], settled: list[Planned], fleet: int) -> Totals:
    """The totals after a seal, for which `fleet` members were at work."""
    counts = [
        update.claim.steps if work.assignment.window_ms else work.assignment.steps
        for update, work in zip(updates, settled, strict=True)
    ]
    share = len(updates) / fleet
    return Totals(
        rounds=before.rounds + share,
        steps=before.steps + share * (sum(counts) / len(counts)),
        tokens=before.tokens + sum(update.claim.tokens for update in updates),
        update_bytes=before.update_bytes + sum(update.claim.size_bytes for update in updates),
    )
