"""One member's side of a round, step by step: hello, deal, receive, mask, agree, reveal.

In flow what the hub says and the member's numbers; out flow signed statements, or why there are none. Invariant: every
step is taken once and in order; shares are revealed for the one list of survivors that this member has signed, and only
once so many others have signed the very same that no other list can have as many.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from shoal.base.ids import NodeId
from shoal.secagg import shares
from shoal.secagg.fixed import Words
from shoal.secagg.keys import KeyPair, close, derive
from shoal.secagg.masks import SEED_BYTES, Mask, apply
from shoal.secagg.messages import (
    Envelopes,
    MaskAgreement,
    MaskDeal,
    MaskedInput,
    MaskHello,
    MaskReveal,
    Refusal,
    author,
    digest_of,
    hash_statements,
    mark,
    open_statement,
)
from shoal.secagg.shares import SHARE_BYTES, Draw
from shoal.secagg.terms import Terms, unsound
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, sign


class Step(IntEnum):
    HELLO = 0
    DEAL = 1
    RECEIVE = 2
    MASK = 3
    AGREE = 4
    REVEAL = 5
    DONE = 6


@dataclass(frozen=True, slots=True)
class Dealing:
    """What a member deals: its word, and an envelope for each of the others."""

    signed: Signed
    envelopes: dict[NodeId, Envelopes]


@dataclass(frozen=True, slots=True)
class MaskedNumbers:
    signed: Signed
    numbers: bytes


class Member:
    """A member in one round. It is thrown away afterwards, and so are its secrets."""

    def __init__(self, identity: Identity, terms: Terms, draw: Draw = os.urandom) -> None:
        self._identity, self.terms, self._draw = identity, terms, draw
        self.node, self._session = identity.node, terms.session
        self._own, self._root = draw(SEED_BYTES), draw(SEED_BYTES)
        """What hides this member's own numbers, and what its halves of the common seeds come from. Never both are
        given away."""
        self._private = KeyPair.of(draw(SEED_BYTES))
        self._pairing = KeyPair.of(derive(self._root, b"pairing"))
        self._hellos: dict[NodeId, MaskHello] = {}
        self._kept: dict[str, tuple[bytes, bytes]] = {}
        """By dealer, this member's shares of the two secrets."""
        self._masks: list[Mask] = []
        self._keys = self._dealt = b""
        self._survivors: tuple[str, ...] = ()
        self.step = Step.HELLO

    # --- keys ------------------------------------------------------------------------------------------------

    def hello(self) -> Signed | Refusal:
        """Offer this round's keys."""
        if why := self._not_now(Step.HELLO) or unsound(self.terms):
            return Refusal(why)
        if self.terms.public(self.node) is None:
            return Refusal("this member is not in the roster")
        self.step = Step.DEAL
        public, private = self._pairing.public, self._private.public
        return self._say(
            MaskHello(session=self._session, node=self.node, pairing=public, private=private),
        )

    def deal(self, statements: Sequence[Signed]) -> Dealing | Refusal:
        """Answer the others' keys with halves of common seeds, and shares of this member's two secrets."""
        if why := self._not_now(Step.DEAL):
            return Refusal(why)
        hellos = read_hellos(self.terms, statements)
        if isinstance(hellos, Refusal):
            return hellos
        mine = hellos.get(self.node)
        if mine is None or mine.pairing != self._pairing.public or mine.private != self._private.public:
            return Refusal("the hub shows other keys for this member than it has")
        self._hellos, self._keys = hellos, hash_statements(statements)
        places = [self.terms.places()[node] for node in hellos]
        own, pair = (
            list(shares.split(secret, self.terms.threshold, places, self._draw).values())
            for secret in (self._own, self._root)
        )
        made = {
            node: self._envelopes(node, hello, a + b)
            for (node, hello), a, b in zip(hellos.items(), own, pair, strict=True)
        }
        envelopes = {node: pairs for node, pairs in made.items() if pairs is not None}
        if len(envelopes) < len(hellos):
            broken = sorted(set(hellos) - set(envelopes))
            return Refusal("a key is none", broken[0])
        self.step = Step.RECEIVE
        marks = [
            tuple(mark(self._session, self.node, kind, share) for share in dealt)
            for kind, dealt in (("own", own), ("pair", pair))
        ]
        word = MaskDeal(
            session=self._session,
            node=self.node,
            keys=self._keys,
            envelopes=tuple(pairs.digest for pairs in envelopes.values()),
            own_marks=marks[0],
            pair_marks=marks[1],
        )
        return Dealing(self._say(word), envelopes)

    def _envelopes(self, node: NodeId, hello: MaskHello, dealt: bytes) -> Envelopes | None:
        context = envelope_context(self._session, self.node, node)
        half = close(half_seed(self._root, node), hello.pairing, context)
        kept = close(dealt, hello.private, context)
        return Envelopes(half, kept) if half is not None and kept is not None else None

    def receive(self, statements: Sequence[Signed], envelopes: Mapping[str, Envelopes]) -> Refusal | None:
        """Open what the others dealt to this member; its masks are known from then on."""
        if why := self._not_now(Step.RECEIVE):
            return Refusal(why)
        deals = read_deals(self.terms, statements, self._keys, list(self._hellos))
        if isinstance(deals, Refusal):
            return deals
        if self.node not in deals:
            return Refusal("the hub left out what this member dealt")
        number = list(self._hellos).index(self.node)
        masks = [Mask(self._own, adds=True)]
        for node, deal in deals.items():
            opened = self._open(node, deal, envelopes.get(node), number)
            if isinstance(opened, Refusal):
                return opened
            half, self._kept[node] = opened
            if node != self.node:
                masks.append(pair_mask(self._session, self.node, node, half_seed(self._root, node), half))
        self._masks, self._dealt = masks, hash_statements(statements)
        self.step = Step.MASK
        return None

    def _open(
        self, node: NodeId, deal: MaskDeal, envelopes: Envelopes | None, number: int
    ) -> tuple[bytes, tuple[bytes, bytes]] | Refusal:
        if envelopes is None or envelopes.digest != deal.envelopes[number]:
            return Refusal("an envelope is not the one that was dealt", node)
        context = envelope_context(self._session, node, self.node)
        half = self._pairing.open(envelopes.half, context)
        dealt = self._private.open(envelopes.shares, context)
        if half is None or dealt is None or len(half) != SEED_BYTES or len(dealt) != 2 * SHARE_BYTES:
            return Refusal("an envelope does not open", node)
        own, pair = dealt[:SHARE_BYTES], dealt[SHARE_BYTES:]
        marks = (mark(self._session, node, "own", own), mark(self._session, node, "pair", pair))
        if marks != (deal.own_marks[number], deal.pair_marks[number]):
            return Refusal("a share is not the one that was dealt", node)
        return half, (own, pair)

    # --- numbers ---------------------------------------------------------------------------------------------

    def mask(self, words: Words) -> MaskedNumbers | Refusal:
        """Hide these numbers. They may be masked in one round only, whatever becomes of it."""
        if why := self._not_now(Step.MASK):
            return Refusal(why)
        if words.dtype != np.uint32 or words.shape != (self.terms.numel,):
            return Refusal(f"{words.shape} numbers where the round has {self.terms.numel}")
        hidden = words.copy()
        apply(hidden, self._masks)
        self._masks = []
        self.step = Step.AGREE
        numbers = hidden.astype("<u4", copy=False).tobytes()
        word = MaskedInput(
            session=self._session, node=self.node, dealt=self._dealt, numbers=digest_of([numbers])
        )
        return MaskedNumbers(self._say(word), numbers)

    # --- the end ---------------------------------------------------------------------------------------------

    def agree(self, survivors: Sequence[str]) -> Signed | Refusal:
        """Sign whose numbers are in the sum: once, whatever the hub says later."""
        if why := self._not_now(Step.AGREE):
            return Refusal(why)
        listed = tuple(survivors)
        if list(listed) != sorted(set(listed)) or not set(listed) <= set(self._kept):
            return Refusal("the survivors are not in order, or not of those who dealt")
        if len(listed) < self.terms.threshold:
            return Refusal(f"{len(listed)} survivors are fewer than the {self.terms.threshold} that it takes")
        if self.node not in listed:
            return Refusal("the hub has left this member out")
        self._survivors = listed
        self.step = Step.REVEAL
        return self._say(self._agreement(self.node))

    def _agreement(self, node: str) -> MaskAgreement:
        return MaskAgreement(session=self._session, node=node, dealt=self._dealt, survivors=self._survivors)

    def reveal(self, agreements: Sequence[Signed]) -> Signed | Refusal:
        """Give away one share for each member, once enough survivors have signed the same list as this one."""
        if why := self._not_now(Step.REVEAL):
            return Refusal(why)
        same = {
            node
            for node in map(author, agreements)
            if node in self._survivors
            and any(
                open_statement(signed, MaskAgreement, self.terms, node) == self._agreement(node)
                for signed in agreements
                if author(signed) == node
            )
        }
        if len(same) < self.terms.threshold:
            return Refusal(f"{len(same)} signed this list of survivors; it takes {self.terms.threshold}")
        self.step = Step.DONE
        word = MaskReveal(
            session=self._session,
            node=self.node,
            own={node: kept[0] for node, kept in self._kept.items() if node in self._survivors},
            pairs={node: kept[1] for node, kept in self._kept.items() if node not in self._survivors},
        )
        self._kept = {}
        return self._say(word)

    def _say(self, word: MaskHello | MaskDeal | MaskedInput | MaskAgreement | MaskReveal) -> Signed:
        return sign(self._identity, word)

    def _not_now(self, step: Step) -> str:
        return "" if self.step == step else f"{step.name.lower()} comes before or after this, not now"


def read_hellos(terms: Terms, statements: Sequence[Signed]) -> dict[NodeId, MaskHello] | Refusal:
    """The keys of those who take part, in the order of their ids."""
    found: dict[NodeId, MaskHello] = {}
    for signed in statements:
        node = NodeId(author(signed))
        hello = open_statement(signed, MaskHello, terms, node)
        if hello is None:
            return Refusal("a hello is not signed by a member, or of another round", node)
        if found and node <= max(found):
            return Refusal("the hellos are not in order, or one is there twice", node)
        found[node] = hello
    if len(found) < terms.threshold:
        return Refusal(f"{len(found)} said hello; it takes {terms.threshold}")
    offered = [key for hello in found.values() for key in (hello.pairing, hello.private)]
    if len(set(offered)) < len(offered):
        return Refusal("two members have the same key")
    return found


def read_deals(
    terms: Terms, statements: Sequence[Signed], keys: bytes, hellos: Sequence[NodeId]
) -> dict[NodeId, MaskDeal] | Refusal:
    """What was dealt, in the order of ids, each in answer to the same hellos."""
    found: dict[NodeId, MaskDeal] = {}
    for signed in statements:
        node = NodeId(author(signed))
        deal = open_statement(signed, MaskDeal, terms, node) if node in hellos else None
        if deal is None or deal.keys != keys:
            return Refusal("a deal is not signed by one who said hello, or answers other hellos", node)
        if {len(deal.envelopes), len(deal.own_marks), len(deal.pair_marks)} != {len(hellos)}:
            return Refusal("a deal is not for everybody", node)
        if found and node <= max(found):
            return Refusal("the deals are not in order, or one is there twice", node)
        found[node] = deal
    if len(found) < terms.threshold:
        return Refusal(f"{len(found)} have dealt; it takes {terms.threshold}")
    return found


def half_seed(root: bytes, other: str) -> bytes:
    """What a member puts into the seed that it has in common with another."""
    return derive(root, b"half/" + other.encode())


def pair_mask(session: bytes, here: str, other: str, mine: bytes, theirs: bytes) -> Mask:
    """The mask of a pair, as `here` applies it: the one with the smaller id adds, the other subtracts."""
    first = here < other
    halves = mine + theirs if first else theirs + mine
    return Mask(derive(halves, b"pair/" + session), adds=first)


def envelope_context(session: bytes, sender: str, recipient: str) -> bytes:
    return digest_of([session, sender.encode(), recipient.encode()])
