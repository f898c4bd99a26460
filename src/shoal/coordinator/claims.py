"""Claims on their way into a seal: checked, kept durably, acknowledged, settled.

In flow offers from nodes; out flow acknowledgements, and the lists a seal is made of. Invariant: an
acknowledged claim is durable first, and ends in exactly one seal, accepted or rejected with a reason.
"""

from __future__ import annotations

import msgspec

from shoal.base.ids import BlobId, NodeId
from shoal.coordinator.events import Effect, Keep, Send
from shoal.runlog.chain import BadEntry
from shoal.runlog.entries import Accepted, Claim, Rejected
from shoal.runlog.view import RunView
from shoal.wire.messages import ClaimAck, Offer
from shoal.wire.signed import parse

PREFIX = "claim."


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
            self._view.open_claim(offer.claim)
            self._open[claim.node] = (claim, offer)
        except BadEntry as error:
            self._void[claim.node, claim.sequence] = str(error)

    def offered(self, node: NodeId, offer: Offer, seeders: int) -> list[Effect]:
        """Judge an offer; keep it and say so, or say why not. `seeders` is how many others could hold it."""
        try:
            claim = self._view.open_claim(offer.claim)
            if claim.node != node:
                raise BadEntry(f"is a claim of {claim.node[:12]}, sent by another")
            holders = self._view.open_receipts(claim, offer.receipts)
        except BadEntry as error:
            stale = parse(offer.claim.payload, Claim)
            return [
                Send(node, ClaimAck(sequence=stale.sequence if stale else -1, kept=False, reason=str(error)))
            ]
        wanted = min(self._receipts, seeders)
        if len(holders) < wanted:
            why = f"{len(holders)} of {wanted} storage receipts"
            return [Send(node, ClaimAck(sequence=claim.sequence, kept=False, reason=why))]
        known = self._open.get(node)
        if known is not None:
            same = known[1].claim == offer.claim
            why = "already kept" if same else "another claim of this round is kept"
            return [Send(node, ClaimAck(sequence=claim.sequence, kept=same, reason=why))]
        self._open[node] = (claim, offer)
        return [
            Keep(_key(claim), msgspec.msgpack.encode(offer)),
            Send(node, ClaimAck(sequence=claim.sequence, kept=True, reason="kept for the next seal")),
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
        accepted = tuple(
            Accepted(claim=offer.claim, weight=claim.samples, receipts=offer.receipts)
            for _, (claim, offer) in sorted(self._open.items())
        )
        rejected = tuple(
            Rejected(node=node, sequence=sequence, reason=reason[:200])
            for (node, sequence), reason in sorted(self._void.items())
            if node not in self._open or self._open[node][0].sequence > sequence
        )
        self._settled += [_key(claim) for _, (claim, _) in sorted(self._open.items())]
        self._settled += [f"{PREFIX}{node}.{sequence}" for node, sequence in sorted(self._void)]
        self._open.clear()
        self._void.clear()
        return accepted, rejected

    def settled(self) -> list[str]:
        """Keys that may be dropped once the seal is durable."""
        keys, self._settled = self._settled, []
        return keys


def _key(claim: Claim) -> str:
    return f"{PREFIX}{claim.node}.{claim.sequence}"
