"""Claims on their way into a seal: checked, kept durably, acknowledged, settled.

In flow offers from nodes; out flow acknowledgements, and the lists a seal is made of. Invariant: an
acknowledged claim is durable first, and ends in exactly one seal, accepted or rejected with a reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shoal.base.ids import BlobId, NodeId
from shoal.coordinator.events import Effect, Keep, Send
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Accepted, Claim, Rejected
from shoal.runlog.statements import fair_weight, open_claim, open_receipts, require
from shoal.runlog.view import MAX_TEXT, RunView
from shoal.wire.messages import ClaimAck, Offer
from shoal.wire.signed import parse

PREFIX = "claim."
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

    def lacking(self, holders: tuple[NodeId, ...], wanted: int) -> str:
        """What is missing, in words; "" if nothing."""
        counted = [holder for holder in holders if holder not in self.distrusted]
        if self.own is not None and self.own not in counted:
            return "the coordinator itself must hold this update, since an earlier one was withheld"
        needed = min(wanted, self.seeders)
        return f"{len(counted)} of {needed} storage receipts" if len(counted) < needed else ""


class Claims:
    """The kept claims of the open round, and those that can no longer be accepted."""

    def __init__(self, view: RunView, receipts: int, kept: dict[str, bytes]) -> None:
        self._view = view
        self._receipts = receipts
        self._open: dict[NodeId, tuple[Claim, Offer]] = {}
        self._void: dict[tuple[NodeId, int], str] = {}
        self._settled: list[str] = []
        for value in kept.values():
            self._restore(value)

    def _restore(self, value: bytes) -> None:
        offer = parse(value, Offer)
        claim = parse(offer.claim.payload, Claim) if offer else None
        if offer is None or claim is None:
            return
        if claim.sequence <= self._view.members[claim.node].last_sequence:
            self._settled.append(_key(claim))  # Sealed already; the crash came before it was dropped.
            return
        try:
            open_claim(self._view, offer.claim)
            self._open[claim.node] = (claim, offer)
        except BadEntry as error:
            self._void[claim.node, claim.sequence] = str(error)

    def offered(self, node: NodeId, offer: Offer, demand: Demand) -> list[Effect]:
        """Judge an offer; keep it and say so, or say why not."""
        try:
            claim = open_claim(self._view, offer.claim)
            require(claim.node == node, f"is a claim of {claim.node[:12]}, sent by another")
            holders = open_receipts(self._view, claim, offer.receipts)
        except BadEntry as error:
            stale = parse(offer.claim.payload, Claim)
            return [_answer(node, stale.sequence if stale else -1, str(error))]
        if lacking := demand.lacking(holders, self._receipts):
            return [_answer(node, claim.sequence, lacking, retry=True)]
        known = self._open.get(node)
        if known is not None:
            same = known[1].claim == offer.claim
            why = "already kept" if same else "another claim of this round is kept"
            return [_answer(node, claim.sequence, why, kept=same)]
        self._open[node] = (claim, offer)
        return [
            Keep(_key(claim), msgspec.msgpack.encode(offer)),
            _answer(node, claim.sequence, "kept for the next seal", kept=True),
        ]

    def nodes(self) -> frozenset[NodeId]:
        return frozenset(self._open)

    def blobs(self) -> set[BlobId]:
        return {claim.blob for claim, _ in self._open.values()}

    def void(self, reason: str) -> None:
        """None of the kept claims can be accepted any more; the next seal says so."""
        for claim, _ in self._open.values():
            self._void[claim.node, claim.sequence] = reason
        self._open.clear()

    def settle(self) -> tuple[tuple[Accepted, ...], tuple[Rejected, ...]]:
        """Everything kept, as the next seal lists it. Order is by node, so that ties fall alike everywhere."""
        accepted: list[Accepted] = []
        size = 0
        for node, (claim, offer) in sorted(self._open.items()):
            size += (
                len(offer.claim.payload) + sum(len(receipt.payload) + 80 for receipt in offer.receipts) + 200
            )
            if size > MAX_SEAL_BYTES:
                self._void[node, claim.sequence] = "the seal was full"
                continue
            weight = fair_weight(claim, self._view.planned[node][claim.plan])
            accepted.append(Accepted(claim=offer.claim, weight=weight, receipts=offer.receipts))
            self._settled.append(_key(claim))
        self._open.clear()
        return tuple(accepted), self.reject()

    def reject(self) -> tuple[Rejected, ...]:
        """Those that can no longer be accepted, as a seal or the end of the run lists them."""
        for claim, _ in self._open.values():
            self._void[claim.node, claim.sequence] = "the run was stopped"
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
