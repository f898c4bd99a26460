"""A group and its hub in one process, stopped at any step, with hands on every message."""

from __future__ import annotations

import numpy as np

from shoal.base.ids import NodeId
from shoal.secagg.collector import Collector, Stage, Total
from shoal.secagg.fixed import Words
from shoal.secagg.member import Dealing, MaskedNumbers, Member
from shoal.secagg.messages import Agreed, Dealt, Keys, Refusal, Survivors
from shoal.secagg.terms import Terms, usual_threshold
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed

NUMEL = 1000


def identities(count: int) -> list[Identity]:
    made = [Identity(bytes([number + 1]) * 32) for number in range(count)]
    return sorted(made, key=lambda identity: identity.node)


def terms_of(
    members: list[Identity], *, threshold: int = 0, round_number: int = 1, numel: int = NUMEL
) -> Terms:
    return Terms(
        group="f" * 32,
        hub="0" * 40,
        round=round_number,
        roster=tuple(identity.public for identity in members),
        threshold=threshold or usual_threshold(len(members)),
        numel=numel,
        limit=8.0,
    )


def signed(answer: Signed | Refusal) -> Signed:
    assert isinstance(answer, Signed), answer
    return answer


class Group:
    """Members by number; `drop` says who stops answering before which stage."""

    def __init__(
        self, count: int = 6, *, threshold: int = 0, round_number: int = 1, numel: int = NUMEL
    ) -> None:
        self.identities = identities(count)
        self.terms = terms_of(self.identities, threshold=threshold, round_number=round_number, numel=numel)
        self.hub = Collector(self.terms)
        self.members = {one.node: Member(one, self.terms) for one in self.identities}
        self.nodes = [one.node for one in self.identities]
        random = np.random.default_rng(5)
        self.words: dict[NodeId, Words] = {
            node: random.integers(0, 2**32, numel, dtype=np.uint32) for node in self.nodes
        }
        self.drop: dict[Stage, set[NodeId]] = {}

    def until(self, stage: Stage) -> None:
        """Play on until the hub waits for this."""
        while self.hub.stage < stage:
            for node in self.answering():
                assert self.answer(node) is None
            assert self.hub.close() is None

    def answering(self) -> list[NodeId]:
        gone = {node for stage, nodes in self.drop.items() if stage <= self.hub.stage for node in nodes}
        return [node for node in self.hub.waiting_for if node not in gone]

    def answer(self, node: NodeId) -> Refusal | None:
        """One member's answer to what the hub tells it."""
        member, told = self.members[node], self.hub.told(node)
        match told:
            case Keys():
                dealing = member.deal(told.hellos)
                assert isinstance(dealing, Dealing), dealing
                return self.hub.take_deal(node, dealing.signed, dealing.envelopes)
            case Dealt():
                refusal = member.receive(told.deals, told.envelopes)
                assert refusal is None, refusal
                masked = member.mask(self.words[node])
                assert isinstance(masked, MaskedNumbers), masked
                return self.hub.take_numbers(node, masked.signed, masked.numbers)
            case Survivors():
                return self.hub.take_agreement(node, signed(member.agree(told.nodes)))
            case Agreed():
                return self.hub.take_reveal(node, signed(member.reveal(told.agreements)))
        return self.hub.take_hello(node, signed(member.hello()))

    def sum(self, nodes: list[NodeId]) -> Words:
        """What the plain sum of these members' numbers is."""
        total = np.zeros(self.terms.numel, dtype=np.uint32)
        for node in nodes:
            total += self.words[node]
        return total

    def finish(self) -> Total:
        self.until(Stage.SUM)
        total = self.hub.finish()
        assert isinstance(total, Total), total
        return total
