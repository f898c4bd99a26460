"""What the hub has to take off the sum, from the shares that it was given.

In flow deals, envelopes and shares; out flow masks, or whose fault it is that there are none. Invariant: a secret is
used only if its public half, or the marks of all its shares, are what its owner signed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.base.ids import NodeId
from shoal.secagg import shares
from shoal.secagg.keys import KeyPair, derive
from shoal.secagg.masks import SEED_BYTES, Mask, opposite
from shoal.secagg.member import envelope_context, half_seed, pair_mask
from shoal.secagg.messages import Envelopes, MaskDeal, MaskHello, MaskReveal, Refusal, mark
from shoal.secagg.terms import Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Everything that a round has brought to the hub."""

    terms: Terms
    hellos: Mapping[NodeId, MaskHello]
    deals: Mapping[NodeId, MaskDeal]
    envelopes: Mapping[NodeId, Mapping[NodeId, Envelopes]]
    """By sender, then by recipient."""
    survivors: Sequence[NodeId]
    reveals: Mapping[NodeId, MaskReveal]

    @property
    def missing(self) -> list[NodeId]:
        """Those who dealt, and whose numbers are not in the sum."""
        return [node for node in self.deals if node not in self.survivors]


def wrong_share(opened: Opened, word: MaskReveal) -> str:
    """Why this is not what the member was dealt and should give away now; "" if it is."""
    survivors, missing = set(opened.survivors), set(opened.missing)
    if set(word.own) != survivors or set(word.pairs) != missing:
        return "it gives shares for other members than those it has to"
    number = list(opened.hellos).index(NodeId(word.node))
    for kind, given in (("own", word.own), ("pair", word.pairs)):
        for dealer, share in given.items():
            deal = opened.deals[NodeId(dealer)]
            marks = deal.own_marks if kind == "own" else deal.pair_marks
            if mark(opened.terms.session, dealer, kind, share) != marks[number]:
                return f"its share of {dealer[:12]} is not the one that was dealt"
    return ""


def masks_to_remove(opened: Opened) -> list[Mask] | Refusal:
    """The survivors' own masks, and those that they have in common with the missing."""
    found: list[Mask] = []
    for node in opened.survivors:
        seed = _secret(opened, node, {giver: word.own[node] for giver, word in opened.reveals.items()})
        if seed is None:
            return Refusal("the shares that it dealt give no secret", node)
        found.append(Mask(seed, adds=True))
    for node in opened.missing:
        pairs = _pairs_of(opened, node)
        if isinstance(pairs, Refusal):
            return pairs
        found += pairs
    return opposite(found)


def _pairs_of(opened: Opened, node: NodeId) -> list[Mask] | Refusal:
    """The masks that the survivors share with one who is missing, as the survivors applied them."""
    root = _secret(opened, node, {giver: word.pairs[node] for giver, word in opened.reveals.items()})
    pairing = KeyPair.of(derive(root, b"pairing")) if root is not None else None
    if root is None or pairing is None or pairing.public != opened.hellos[node].pairing:
        return Refusal("the shares that it dealt do not give the key that it showed", node)
    session, masks = opened.terms.session, []
    for other in opened.survivors:
        context = envelope_context(session, other, node)
        half = pairing.open(opened.envelopes[other][node].half, context)
        if half is None or len(half) != SEED_BYTES:
            return Refusal("an envelope that it dealt does not open", other)
        masks.append(pair_mask(session, other, node, half, half_seed(root, other)))
    return masks


def _secret(opened: Opened, node: NodeId, given: Mapping[NodeId, bytes]) -> bytes | None:
    places = opened.terms.places()
    return shares.join({places[giver]: share for giver, share in given.items()}, opened.terms.threshold)
