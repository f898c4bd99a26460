"""Claims on their way into a seal: checked, kept durably, acknowledged, settled.

In flow offers from nodes; out flow acknowledgements, and the lists a seal is made of. Invariant: an
acknowledged claim is durable first, and ends in exactly one seal, accepted or rejected with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from shoal.base.ids import BlobId, NodeId
from shoal.coordinator.events import Effect, Keep, Send
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Accepted, Claim, Receipt, Rejected
from shoal.runlog.pieces import held_pieces, lacking
from shoal.runlog.statements import open_claim, read_receipts, require
from shoal.runlog.view import MAX_TEXT, RunView
from shoal.strategy.pieces import Weighing
from shoal.wire.messages import ClaimAck, Offer
from shoal.wire.signed import parse

PREFIX = "claim."
WHOLE = 1000
"""The share of its weight that a trusted member's update counts for."""
MAX_SEAL_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What storage an offer must show."""

    seeders: int
    """How many others could hold it now."""
    distrusted: frozenset[NodeId] = frozenset()
    """Holders that promised a blob which nobody could get: their word does not count."""
    own: NodeId | None = None
    """The coordinator, if its own receipt is needed: the author's last update was withheld."""
    enough: NodeId | None = None
    """The coordinator, whose receipt is enough for an author who finds too few others for `patience_s`."""
    patience_s: float = math.inf

    def excuses(self, claim: Claim, receipts: tuple[Receipt, ...], short_s: float) -> bool:
        """Whether an update counts without what is lacking: others that could hold it may not want to."""
        held = any(one.holder == self.enough and one.blob == claim.blob for one in receipts)
        return held and short_s >= self.patience_s

    def lacking(self, claim: Claim, receipts: tuple[Receipt, ...], wanted: int) -> str:
        """What is missing, in words; "" if nothing."""
        holders = dict.fromkeys(receipt.holder for receipt in receipts)
        counted = [holder for holder in holders if holder not in self.distrusted]
        whole = [receipt.holder for receipt in receipts if receipt.blob == claim.blob]
        if self.own is not None and self.own not in whole:
            return "the coordinator itself must hold this update, since an earlier one was withheld"
        needed = min(wanted, self.seeders)
        if len(counted) < needed:
            return f"{len(counted)} of {needed} storage receipts"
        return lacking(claim, held_pieces(claim, receipts), whole, counted)


@dataclass(frozen=True, slots=True)
class Kept:
    """A claim that is durable here."""

    claim: Claim
    offer: Offer
    arrived_at: float

    @property
    def size_bytes(self) -> int:
        """About what it takes in a seal."""
        receipts = sum(len(receipt.payload) + 80 for receipt in self.offer.receipts)
        claim = self.offer.claim
        return len(claim.payload) + len(claim.signature) + receipts + 140


class Claims:
    """The kept claims of work that is open, and those that can no longer be accepted."""

    def __init__(
        self,
        view: RunView,
        receipts: int,
        weighing: Weighing,
        kept: dict[str, bytes],
        now: float,
        share: Callable[[NodeId], int] = lambda node: WHOLE,
    ) -> None:
        self._share = share
        self._view = view
        self._receipts = receipts
        self._weighing = weighing
        self._open: dict[NodeId, Kept] = {}
        self._void: dict[tuple[NodeId, int], str] = {}
        self._settled: list[str] = []
        self._short_since: dict[NodeId, float] = {}
        """Whose updates have had too few holders, and since when."""
        for value in kept.values():
            self._restore(value, now)

    def _restore(self, value: bytes, now: float) -> None:
        offer = parse(value, Offer)
        claim = parse(offer.claim.payload, Claim) if offer else None
        if offer is None or claim is None:
            return
        if claim.sequence <= self._view.members[claim.node].last_sequence:
            self._settled.append(_key(claim))  # Sealed already; the crash came before it was dropped.
            return
        try:
            open_claim(self._view, offer.claim)
            self._open[claim.node] = Kept(claim, offer, now)
        except BadEntry as error:
            self._void[claim.node, claim.sequence] = str(error)

    def offered(self, node: NodeId, offer: Offer, demand: Demand, now: float) -> list[Effect]:
        """Judge an offer; keep it and say so, or say why not."""
        try:
            claim = open_claim(self._view, offer.claim)
            require(claim.node == node, "is a claim of {:.12}, sent by another", claim.node)
            receipts = read_receipts(self._view, claim, offer.receipts)
        except BadEntry as error:
            stale = parse(offer.claim.payload, Claim)
            return [_answer(node, stale.sequence if stale else -1, str(error))]
        if missing := demand.lacking(claim, receipts, self._receipts):
            short_s = now - self._short_since.setdefault(node, now)
            if not demand.excuses(claim, receipts, short_s):
                return [_answer(node, claim.sequence, missing, retry=True)]
        else:
            self._short_since.pop(node, None)
        known = self._open.get(node)
        if known is not None:
            same = known.offer.claim == offer.claim
            why = "already kept" if same else "another claim of this node is kept"
            return [_answer(node, claim.sequence, why, kept=same)]
        self._open[node] = Kept(claim, offer, now)
        return [
            Keep(_key(claim), msgspec.msgpack.encode(offer)),
            _answer(node, claim.sequence, "kept for the next seal", kept=True),
        ]

    def nodes(self) -> frozenset[NodeId]:
        return frozenset(self._open)

    def came(self) -> dict[NodeId, tuple[Claim, float]]:
        """Every claim that is kept, and when it came."""
        return {node: (kept.claim, kept.arrived_at) for node, kept in sorted(self._open.items())}

    def arrivals(self) -> tuple[float, ...]:
        """When they came, in order."""
        return tuple(sorted(kept.arrived_at for kept in self._open.values()))

    def blobs(self) -> set[BlobId]:
        return {kept.claim.blob for kept in self._open.values()}

    def void(self, reason: str) -> None:
        """None of the kept claims can be accepted any more; the next seal says so."""
        for kept in self._open.values():
            self._void[kept.claim.node, kept.claim.sequence] = reason
        self._open.clear()

    def refuse(self, node: NodeId, reason: str) -> None:
        """What is kept of this node cannot be accepted any more; the next seal says so."""
        kept = self._open.pop(node, None)
        if kept is not None:
            self._void[node, kept.claim.sequence] = reason

    def recheck(self) -> None:
        """After a change of keys: what is signed by one that does not count any more cannot be accepted."""
        for node, kept in list(self._open.items()):
            try:
                claim = open_claim(self._view, kept.offer.claim)
                read_receipts(self._view, claim, kept.offer.receipts)
            except BadEntry as error:
                self.refuse(node, str(error))

    def settle(self) -> tuple[tuple[Accepted, ...], tuple[Rejected, ...]]:
        """Everything kept, as the next seal lists it. Order is by node, so that ties fall alike everywhere."""
        accepted: list[Accepted] = []
        size = 0
        for node, kept in sorted(self._open.items()):
            size += kept.size_bytes
            if size > MAX_SEAL_BYTES:
                self._void[node, kept.claim.sequence] = "the seal was full"
                continue
            weight = self._weight(kept.claim)
            accepted.append(Accepted(claim=kept.offer.claim, weight=weight, receipts=kept.offer.receipts))
            self._settled.append(_key(kept.claim))
        self._open.clear()
        return tuple(accepted), self.reject()

    def _weight(self, claim: Claim) -> int:
        """What it counts for, less if the fragments it changes have moved on since."""
        fair = self._view.planned[claim.node][claim.plan].fair_weight(claim)
        age = max(self._view.versions[fragment] - version for fragment, version in claim.base)
        return max(1, self._weighing.discounted(fair, age) * self._share(claim.node) // WHOLE)

    def fleet_weight(self, live: frozenset[NodeId]) -> int:
        """What the whole fleet counts for: everyone who is live and has work, or whose claim is here."""
        context = self._view.genesis.manifest.context if self._view.genesis else 0
        total = 0
        for node, plans in self._view.planned.items():
            kept = self._open.get(node)
            if kept is not None:
                work = plans[kept.claim.plan]
                total += max(work.fair_weight(kept.claim), work.whole_weight(context or 1))
            elif node in live:
                total += plans[max(plans)].whole_weight(context or 1)
        return total

    def reject(self) -> tuple[Rejected, ...]:
        """Those that can no longer be accepted, as a seal or the end of the run lists them."""
        for kept in self._open.values():
            self._void[kept.claim.node, kept.claim.sequence] = "the run was stopped"
        self._settled += [f"{PREFIX}{node}.{sequence}" for node, sequence in sorted(self._void)]
        rejected = tuple(
            Rejected(node=node, sequence=sequence, reason=reason[:MAX_TEXT])
            for (node, sequence), reason in sorted(self._void.items())
        )
        self._open.clear()
        self._void.clear()
        return rejected

    def settled(self) -> list[str]:
        """Keys that may be dropped once the seal is durable."""
        keys, self._settled = self._settled, []
        return keys


def _answer(node: NodeId, sequence: int, reason: str, *, kept: bool = False, retry: bool = False) -> Send:
    return Send(node, ClaimAck(sequence=sequence, kept=kept, retry=retry, reason=reason[:MAX_TEXT]))


def _key(claim: Claim) -> str:
    return f"{PREFIX}{claim.node}.{claim.sequence}"
