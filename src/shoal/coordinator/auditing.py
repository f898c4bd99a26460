"""The coordinator's part in audits: words that were asked for go into the log, and what follows from them is done.

In flow signed screenings and verdicts; out flow entries. Invariant: it judges nothing itself; everything here is read
from the log, and anyone who reads it comes to the same.
"""

from __future__ import annotations

from shoal.audit.docket import Docket
from shoal.audit.standing import Standings
from shoal.base.ids import BlobId, NodeId
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Audits, Ban
from shoal.runlog.statements import open_screening, open_verdict
from shoal.runlog.view import RunView
from shoal.strategy.recipe import Recipe
from shoal.wire.messages import Audited


class Auditing:
    def __init__(self, recipe: Recipe, view: RunView) -> None:
        self._spec = recipe.audit
        self._view = view
        self._docket = Docket(recipe.audit)

    @property
    def docket(self) -> Docket:
        """Up to the log's head."""
        self._docket.follow(self._view)
        return self._docket

    def heard(self, node: NodeId, message: Audited) -> Audits | None:
        """The entry that a member's word makes; None if nobody asked for it."""
        view = self._view
        if not self._spec.on or view.stopped is not None:
            return None
        try:
            if message.screening is not None:
                screening = open_screening(view, message.screening)
                wanted = screening.node == node and self.docket.wants(view, screening)
                return Audits(screenings=(message.screening,)) if wanted else None
            if message.verdict is not None:
                verdict = open_verdict(view, message.verdict)
                wanted = verdict.node == node and self.docket.wants(view, verdict)
                return Audits(verdicts=(message.verdict,)) if wanted else None
        except BadEntry:
            pass
        return None

    def standings(self) -> Standings | None:
        """Of all members; None in a run without audits."""
        return self.docket.standings if self._spec.on else None

    def share(self, node: NodeId) -> int:
        """Of a thousand, how much a member's updates count for."""
        return self.docket.standings.share(node) if self._spec.on else 1000

    def bans(self, wall_ms: int) -> list[Ban]:
        """For whoever has lost its seat, and of whom the log has said nothing since."""
        if not self._spec.on or self._view.stopped is not None:
            return []
        return [
            Ban(
                node=one.node,
                until_ms=wall_ms + int(self._spec.ban_s * 1000 * max(1, one.times // 2)),
                reason=one.why,
            )
            for one in self.docket.expelled
            if self._view.bans.get(one.node, (-1, None))[0] < one.at
        ]

    def evidence(self) -> set[BlobId]:
        """What it takes to check every conviction again."""
        found: set[BlobId] = set()
        for case in self.docket.cases.values():
            if case.outcome in ("forged", "withheld", "open"):
                claim = case.update.claim
                found |= {claim.blob, BlobId(claim.local_before)}
                found |= {word.replayed for word in case.verdicts.values() if word.replayed is not None}
        return found
