"""Do the nodes agree on the state? Counts signed attestations, position by position.

In flow attestations; out flow verdicts: agreed (by a majority of the live), dissenters, or no majority
possible. Invariant: only `folded` words count, one per node and position, and of a seal that was folded through
digests only `adopted` ones, since the log has its folders' words; a node's later word replaces its earlier one, since
it may have rebuilt its state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from shoal.base.ids import BlobId, NodeId
from shoal.coordinator.events import FetchBlob
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Attestation
from shoal.runlog.statements import open_attestation
from shoal.runlog.view import RunView
from shoal.wire.signed import Signed

POSITIONS_KEPT = 64
MOST_REBUILDS = 8
"""So often a dissenter is told to build its state anew: who is still of another mind then is not asked for ever."""


@dataclass(frozen=True, slots=True)
class Agreement:
    state: str
    snapshot: BlobId | None
    holders: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    agreed: str | None
    """The majority's state hash; None if there can be no majority."""
    news: tuple[Signed, ...] = ()
    """Words not yet in the log."""
    dissenters: tuple[NodeId, ...] = ()
    """Those to build their state anew."""


class Attesting:
    def __init__(self, view: RunView) -> None:
        self._view = view
        self._words: dict[int, dict[NodeId, tuple[Attestation, Signed]]] = {}
        self._logged: dict[int, set[NodeId]] = {}
        self._asked: dict[int, BlobId] = {}
        self._rebuilds: dict[int, Counter[NodeId]] = {}
        self._false: set[BlobId] = set()

    def heard(self, node: NodeId, signed: Signed) -> Attestation | None:
        """Take a node's word, or None if it is not its own, not of this log, or about a state that was undone."""
        try:
            attestation = open_attestation(self._view, signed)
        except BadEntry:
            return None
        at = attestation.at.position
        if attestation.node != node or not self._view.stands(at):
            return None
        step = self._view.step_at(at)
        adopted = step is not None and step.adopted
        if attestation.how == ("adopted" if adopted else "folded") and (step is None or step.settled):
            self._words.setdefault(at, {})[node] = (attestation, signed)
        for old in sorted(self._words)[:-POSITIONS_KEPT]:
            del self._words[old]
            self._logged.pop(old, None)
            self._asked.pop(old, None)
            self._rebuilds.pop(old, None)
        return attestation

    def recheck(self) -> None:
        """After a change of keys: forget words that are signed by one that does not count any more."""
        for words in self._words.values():
            for node, (_, signed) in list(words.items()):
                try:
                    open_attestation(self._view, signed)
                except BadEntry:
                    del words[node]

    def judge(self, at: int, live: frozenset[NodeId]) -> Verdict | None:
        """What the words about a position amount to; None while it is open or nothing is new."""
        words = self._words.get(at, {})
        counts = Counter(word.state for word, _ in words.values())
        voters = len(live | frozenset(words))
        best, votes = max(counts.items(), key=lambda item: (item[1], item[0]), default=("", 0))
        if votes * 2 <= voters:
            return Verdict(agreed=None) if words and len(words) >= voters else None
        news = tuple(signed for _, (_, signed) in sorted(self._unlogged(at).items()))
        self._logged.setdefault(at, set()).update(words)
        dissenters = self._to_rebuild(at, {node for node, (word, _) in words.items() if word.state != best})
        return Verdict(agreed=best, news=news, dissenters=dissenters)

    def _to_rebuild(self, at: int, dissenters: set[NodeId]) -> tuple[NodeId, ...]:
        """Those that are to build the state anew: a liar that attests the same again must not keep everybody busy."""
        asked = self._rebuilds.setdefault(at, Counter())
        asked.update(dissenters)
        return tuple(sorted(node for node in dissenters if asked[node] <= MOST_REBUILDS))

    def _unlogged(self, at: int) -> dict[NodeId, tuple[Attestation, Signed]]:
        logged = self._logged.get(at, set()) | set(self._view.attested.get(at, {}))
        return {node: word for node, word in self._words[at].items() if node not in logged}

    def agreed_at(self, at: int) -> Agreement | None:
        """The majority's state at a position, by the words heard since this start."""
        words = self._words.get(at, {})
        counts = Counter(word.state for word, _ in words.values())
        if not counts:
            return None
        best = max(counts.items(), key=lambda item: (item[1], item[0]))[0]
        same = [word for word, _ in words.values() if word.state == best]
        named = Counter(w.snapshot for w in same if w.snapshot and w.snapshot not in self._false)
        snapshot = max(named, key=lambda blob: (named[blob], blob), default=None)
        holders = tuple(sorted(word.node for word in same if snapshot and word.snapshot == snapshot))
        return Agreement(best, snapshot, holders)

    def last_agreed(self) -> int:
        """The latest standing position whose state a majority of its attesters shares in the log, else 0."""
        for step in reversed(self._view.path):
            words = self._view.attested.get(step.position, {})
            counts = Counter(word.state for word in words.values())
            if counts and max(counts.values()) * 2 > len(words):
                return step.position
        return 0

    def fetch_snapshot(self, at: int) -> list[FetchBlob]:
        """Bring the blob here that most of those who agree name as the state's, unless one is on its way or the
        state is saved."""
        agreed = self.agreed_at(at)
        saved = any(snapshot.at == at for snapshot in self._view.snapshots)
        if agreed is None or agreed.snapshot is None or saved or at in self._asked:
            return []
        self._asked[at] = agreed.snapshot
        size_bytes = self._view.snapshots[-1].size_bytes  # States of a run have about the same size: a hint.
        return [FetchBlob(at, agreed.snapshot, size_bytes, agreed.holders, is_state=True)]

    def asked_for(self, at: int, blob: BlobId) -> bool:
        """True if this blob is being fetched as the state at this position."""
        return self._asked.get(at) == blob

    def snapshot_failed(self, at: int, blob: BlobId) -> list[FetchBlob]:
        """It could not be fetched: try another, if most name another by now. If not, it is asked for when somebody
        attests it again."""
        del self._asked[at]
        agreed = self.agreed_at(at)
        return self.fetch_snapshot(at) if agreed is not None and agreed.snapshot != blob else []

    def snapshot_false(self, at: int, blob: BlobId) -> list[FetchBlob]:
        """It is not the state it was attested to be: whoever named it lied. Try what the others named."""
        self._false.add(blob)
        return self.snapshot_failed(at, blob)
