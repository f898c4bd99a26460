"""The referee: watches a simulated run and fails it the moment an invariant breaks.

In flow entries as they become durable and control frames as they are sent; out flows nothing, or `Foul`.
Invariants checked on every event: the log only grows and holds; one seal a round; no claim counted twice, no
sample trained twice in claims that count; everyone who attests a position attests the same state; a claim's
bytes never change; an acknowledged claim is settled by a seal; acknowledged entries survive every crash.
"""

from __future__ import annotations

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId
from shoal.runlog.chain import read_link
from shoal.runlog.entries import Attestation, Claim, Seal
from shoal.runlog.view import RunView
from shoal.wire.messages import Attest, ClaimAck, Offer, decode
from shoal.wire.signed import parse


class Foul(AssertionError):
    """An invariant was broken."""


class Referee:
    def __init__(self, nodes: dict[str, NodeId]) -> None:
        self.nodes = nodes
        """Who lives at each host now."""
        self.view = RunView()
        self.entries: list[bytes] = []
        self.rounds_sealed: dict[int, int] = {}
        self.states: dict[tuple[int, str], str] = {}
        self.claims: dict[tuple[NodeId, int], bytes] = {}
        self.acknowledged: set[tuple[NodeId, int]] = set()
        self.settled: dict[tuple[NodeId, int], int] = {}
        self.samples: list[tuple[int, int]] = []

    # --- the coordinator's log -----------------------------------------------------------------------------

    def appended(self, position: int, encoded: bytes) -> None:
        """An entry is durable with the coordinator."""
        if position < len(self.entries) and self.entries[position] == encoded:
            return
        if position != len(self.entries):
            raise Foul(
                f"entry {position} written where {len(self.entries)} is next: an entry was lost or changed"
            )
        link = read_link(encoded)
        self.view.apply(link)
        self.entries.append(encoded)
        if isinstance(link.entry.body, Seal):
            self._sealed(link.entry.body, position)

    def _sealed(self, seal: Seal, position: int) -> None:
        if seal.round in self.rounds_sealed:
            raise Foul(f"round {seal.round} sealed at {self.rounds_sealed[seal.round]} and {position}")
        self.rounds_sealed[seal.round] = position
        for update in self.view.path[-1].updates:
            claim = update.claim
            self._settle(claim.node, claim.sequence, position)
            self._count_samples(claim)
        for rejection in seal.rejected:
            self._settle(rejection.node, rejection.sequence, position)

    def _settle(self, node: NodeId, sequence: int, position: int) -> None:
        if (node, sequence) in self.settled:
            raise Foul(
                f"claim {sequence} of {node[:8]} settled at {self.settled[node, sequence]} and {position}"
            )
        self.settled[node, sequence] = position

    def _count_samples(self, claim: Claim) -> None:
        for part in claim.data:
            start, stop = part.start, part.start + part.count
            if any(start < other_stop and other_start < stop for other_start, other_stop in self.samples):
                raise Foul(f"samples [{start}, {stop}) were trained twice")
            self.samples.append((start, stop))

    def restarted(self, stored: list[bytes], kept: set[str]) -> None:
        """The coordinator came back with this log and these kept claims."""
        if stored[: len(self.entries)] != self.entries:
            raise Foul(
                f"the coordinator came back with {len(stored)} entries, others than the {len(self.entries)} seen"
            )
        for position in range(len(self.entries), len(stored)):
            self.appended(position, stored[position])
        for node, sequence in sorted(self.unsettled()):
            if f"claim.{node}.{sequence}" not in kept:
                raise Foul(f"claim {sequence} of {node[:8]} was acknowledged, and lost in a crash")

    # --- what is said --------------------------------------------------------------------------------------

    def frame(self, sender: str, receiver: str, frame: bytes) -> None:
        try:
            message = decode(frame)
        except ShoalError:
            raise Foul(f"{sender} sent a frame that cannot be read") from None
        match message:
            case ClaimAck() if message.kept:
                self._acknowledge(receiver, message.sequence)
            case Offer():
                self._offered(message)
            case Attest():
                self._attested(message)

    def _acknowledge(self, receiver: str, sequence: int) -> None:
        node = self.nodes[receiver]
        if (node, sequence) not in self.claims:
            raise Foul(f"claim {sequence} of {receiver} was acknowledged, but never made")
        self.acknowledged.add((node, sequence))

    def _offered(self, offer: Offer) -> None:
        claim = parse(offer.claim.payload, Claim)
        if claim is None:
            raise Foul("an offer without a claim")
        known = self.claims.setdefault((claim.node, claim.sequence), offer.claim.payload)
        if known != offer.claim.payload:
            raise Foul(f"claim {claim.sequence} of {claim.node[:8]} was made anew with other bytes")

    def _attested(self, message: Attest) -> None:
        word = parse(message.attestation.payload, Attestation)
        if word is None:
            raise Foul("an attestation that cannot be read")
        known = self.states.setdefault((word.at.position, word.at.hash), word.state)
        if known != word.state:
            raise Foul(
                f"two states at {word.at.position}: {known[:12]} and {word.state[:12]} of {word.node[:8]}"
            )

    # --- at the end ----------------------------------------------------------------------------------------

    def unsettled(self) -> set[tuple[NodeId, int]]:
        """Acknowledged claims that no seal has settled yet."""
        return {key for key in self.acknowledged if key not in self.settled}
