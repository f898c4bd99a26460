"""The digests of a seal: gathered from its folders until all have spoken, or it is too late.

In flow folders' words and the passing of time; out flows the entry that says which shards have a digest and which
everybody folds. Invariant: nothing here is decided by the coordinator but when to stop waiting; what the words come to
is the log's own rule, and without any word everybody folds everything.
"""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Digests, Folding
from shoal.runlog.sharding import agreed
from shoal.runlog.statements import open_folding
from shoal.runlog.view import RunView, Step
from shoal.wire.signed import Signed


class Digesting:
    def __init__(self, view: RunView, deadline_s: float, now: float) -> None:
        self.waiting_for = ""
        """In words, whose digests the run is waiting for."""
        self._view = view
        self._deadline_s = deadline_s
        self._at = -1
        self._began_at = now
        self._words: dict[NodeId, tuple[Folding, Signed]] = {}

    def heard(self, node: NodeId, signed: Signed) -> None:
        """Take a folder's word on the seal that waits; its first counts."""
        try:
            word = open_folding(self._view, signed)
        except BadEntry:
            return
        if word.node == node:
            self._begin(word.at.position, self._began_at)
            self._words.setdefault(node, (word, signed))

    def recheck(self) -> None:
        """After a change of keys: forget words that are signed by one that does not count any more."""
        for node, (_, signed) in list(self._words.items()):
            try:
                open_folding(self._view, signed)
            except BadEntry:
                del self._words[node]

    def decide(self, now: float, live: frozenset[NodeId]) -> Digests | None:
        """The entry, once every live folder has spoken or the deadline has passed."""
        step = self._view.unsettled
        if step is None:
            return None
        self._begin(step.position, now)
        drawn = {node for shard in step.shards for node in shard.folders}
        missing = (drawn & live) - set(self._words)
        count = f"{len(self._words)} of {len(drawn)} folders"
        self.waiting_for = f"the digests of {count}"
        late = now - self._began_at >= self._deadline_s
        if missing and not late:
            return None
        return self.close(f"{count} in {self._deadline_s:g} s" if missing else count)

    def close(self, reason: str) -> Digests:
        """The entry by the words that are here."""
        step = self._view.unsettled
        assert step is not None
        self._begin(step.position, self._began_at)
        words = [self._words[node] for node in sorted(self._words)]
        items = agreed(step, [word for word, _ in words])
        return Digests(
            seal=step.position,
            items=items,
            words=tuple(signed for _, signed in words),
            reason=f"{reason}; {_outcome(step, len(items))}",
        )

    def _begin(self, at: int, now: float) -> None:
        if at != self._at:
            self._at, self._began_at, self._words = at, now, {}


def _outcome(step: Step, digested: int) -> str:
    left = len(step.shards) - digested
    return f"{digested} digests" + (f", everybody folds {left} shards" if left else "")
