"""The referee: watches a simulated run and fails it the moment an invariant breaks.

In flow entries as they become durable and control frames as they are sent; out flows nothing, or `Foul`.
Invariants checked on every event: the log only grows and holds; one seal a round; no claim counted twice, no
sample trained twice in claims that count; everyone who attests a position attests the same state, and whoever folds a
shard for everybody folds it to the same digest; a claim's
bytes never change; an acknowledged claim is settled by a seal or by the end, once; nobody's claim counts samples
that were not assigned to it, or comes later than its assignment allows; acknowledged entries survive every crash.
Liars' words prove nothing, but what is made of them is judged like everything else.
"""

from __future__ import annotations

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId
from shoal.runlog.chain import read_link
from shoal.runlog.entries import Attestation, Claim, Folding, Plan, Rejected, Seal, Stopped
from shoal.runlog.view import RunView
from shoal.wire.ballots import Ballot
from shoal.wire.messages import Attest, ClaimAck, Entries, Folded, Offer, decode
from shoal.wire.signed import parse


class Foul(AssertionError):
    """An invariant was broken."""


class Referee:
    def __init__(self, nodes: dict[str, NodeId]) -> None:
        self.nodes = nodes
        """Who lives at each host now."""
        self.liars: set[str] = set()
        """Hosts whose words are not to be believed."""
        self.honest_rounds = 0
        """Seals with at least one honest update."""
        self.view = RunView()
        self.entries: list[bytes] = []
        self.rounds_sealed: dict[int, int] = {}
        self.states: dict[tuple[int, str], str] = {}
        self.digests: dict[tuple[str, int], str] = {}
        """By the hash of a seal and the number of a shard."""
        self.claims: dict[tuple[NodeId, int], bytes] = {}
        self.acknowledged: set[tuple[NodeId, int]] = set()
        self.settled: dict[tuple[NodeId, int], int] = {}
        self.samples: list[tuple[int, int]] = []
        self.by_majority = False
        """Whether each coordinator has a store of its own, and voters keep the log."""
        self.leader = ""
        """Then: the host that took over last."""
        self.takeovers = 0
        self.final_by: dict[int, Ballot] = {}
        """By position, the ballot of the leader under which it became final."""
        self._lying: set[NodeId] = set()
        self._last_round: dict[tuple[NodeId, int], int] = {}
        """By node and plan, the last round that may seal its claim."""
        self._assigned: dict[NodeId, list[tuple[int, int]]] = {}
        """Samples each node was ever given, neighbouring stretches joined."""

    def watch(self, host: str, node: NodeId, *, lies: bool) -> None:
        """Somebody lives at a host from now on."""
        self.nodes[host] = node
        if lies:
            self.liars.add(host)
            self._lying.add(node)

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
        match link.entry.body:
            case Plan():
                self._planned(link.entry.body, position)
            case Seal():
                self._sealed(link.entry.body, position)
            case Stopped():
                self._rejected(link.entry.body.rejected, position)

    def _planned(self, plan: Plan, position: int) -> None:
        for item in plan.members:
            self._last_round[item.node, position] = plan.round + item.staleness
            start, stop = item.data.start, item.data.start + item.data.count
            given = self._assigned.setdefault(item.node, [])
            if given and given[-1][1] == start:
                start = given.pop()[0]
            given.append((start, stop))

    def _sealed(self, seal: Seal, position: int) -> None:
        if seal.round in self.rounds_sealed:
            raise Foul(f"round {seal.round} sealed at {self.rounds_sealed[seal.round]} and {position}")
        self.rounds_sealed[seal.round] = position
        for update in self.view.path[-1].updates:
            claim = update.claim
            self._settle(claim.node, claim.sequence, position)
            self._count_samples(claim)
            if seal.round > self._last_round[claim.node, claim.plan]:
                raise Foul(f"claim {claim.sequence} of {claim.node[:8]} was sealed too late, in {seal.round}")
        self._rejected(seal.rejected, position)
        authors = {update.claim.node for update in self.view.path[-1].updates}
        self.honest_rounds += bool(authors - self._lying)

    def _rejected(self, rejected: tuple[Rejected, ...], position: int) -> None:
        for rejection in rejected:
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
            given = self._assigned.get(claim.node, [])
            if not any(first <= start < stop <= last for first, last in given):
                raise Foul(f"{claim.node[:8]} counts samples [{start}, {stop}), which were not its own")
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

    def came_back(self, stored: list[bytes]) -> None:
        """One of several coordinators with a store each came back with this log."""
        shared = min(len(stored), len(self.entries))
        if stored[:shared] != self.entries[:shared]:
            raise Foul(f"a coordinator came back with {len(stored)} entries, others than those seen")
        for position in range(shared, len(stored)):
            self.appended(position, stored[position])

    def took_over(self, host: str, ballot: Ballot, length: int, kept: set[str]) -> None:
        """One of several coordinators with a store each leads from now on. It has whatever became final under earlier
        ballots; what others have acknowledged is offered again."""
        missed = [at for at in range(length, len(self.entries)) if self.final_by.get(at, ballot) < ballot]
        if missed:
            raise Foul(f"{host} leads with {length} entries, and {missed} were final before")
        self.takeovers += bool(self.leader) and self.leader != host
        self.leader = host
        self.acknowledged = {
            (node, sequence)
            for node, sequence in self.acknowledged
            if (node, sequence) in self.settled or f"claim.{node}.{sequence}" in kept
        }

    def _told(self, items: tuple[bytes, ...]) -> None:
        """What nodes are told is final, and is the same for all."""
        for encoded in items:
            position = read_link(encoded).entry.position
            if position >= len(self.entries) or self.entries[position] != encoded:
                raise Foul(f"somebody was told of an entry {position} that is not final")

    # --- what is said --------------------------------------------------------------------------------------

    def frame(self, sender: str, receiver: str, frame: bytes) -> None:
        try:
            message = decode(frame)
        except ShoalError:
            raise Foul(f"{sender} sent a frame that cannot be read") from None
        lies = sender in self.liars
        match message:
            case ClaimAck() if message.kept and self.leader in ("", sender):
                self._acknowledge(receiver, message.sequence)
            case Entries() if self.by_majority:
                self._told(message.items)
            case Offer():
                self._offered(message, lies)
            case Attest() if not lies:
                self._attested(message)
            case Folded() if not lies:
                self._folded(message)

    def _acknowledge(self, receiver: str, sequence: int) -> None:
        node = self.nodes[receiver]
        if (node, sequence) not in self.claims:
            raise Foul(f"claim {sequence} of {receiver} was acknowledged, but never made")
        self.acknowledged.add((node, sequence))

    def _offered(self, offer: Offer, lies: bool) -> None:
        claim = parse(offer.claim.payload, Claim)
        if claim is None:
            raise Foul("an offer without a claim")
        known = self.claims.setdefault((claim.node, claim.sequence), offer.claim.payload)
        if known != offer.claim.payload and not lies:
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

    def _folded(self, message: Folded) -> None:
        word = parse(message.word.payload, Folding)
        if word is None:
            raise Foul("a folder's word that cannot be read")
        for number, blob, _ in word.items:
            known = self.digests.setdefault((word.at.hash, number), blob)
            if known != blob:
                raise Foul(f"two digests of shard {number} at {word.at.position}, one by {word.node[:8]}")

    # --- at the end ----------------------------------------------------------------------------------------

    def unsettled(self) -> set[tuple[NodeId, int]]:
        """Acknowledged claims that no seal has settled yet."""
        return {key for key in self.acknowledged if key not in self.settled}
