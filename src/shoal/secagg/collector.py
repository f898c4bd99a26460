"""The hub's side of a round, step by step: hellos, deals, masked numbers, agreements, reveals, and the sum.

In flow members' statements; out flow what each of them is told next, and in the end the sum. Invariant: numbers are
added as they come and kept nowhere, so a round takes the room of one update; whoever does not answer before a step is
closed is out of it, and with fewer than the threshold the round has failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from shoal.base.ids import NodeId
from shoal.secagg.fixed import Words
from shoal.secagg.keys import is_key
from shoal.secagg.masks import apply
from shoal.secagg.member import read_deals, read_hellos
from shoal.secagg.messages import (
    Agreed,
    Dealt,
    Envelopes,
    Failed,
    Finished,
    FromHub,
    Keys,
    MaskAgreement,
    MaskDeal,
    MaskedInput,
    MaskHello,
    MaskReveal,
    Refusal,
    Survivors,
    Waiting,
    digest_of,
    hash_statements,
    open_statement,
)
from shoal.secagg.terms import Terms, unsound
from shoal.secagg.unmasking import Opened, masks_to_remove, wrong_share
from shoal.wire.signed import Signed


class Stage(IntEnum):
    """What the hub is waiting for."""

    HELLOS = 0
    DEALS = 1
    NUMBERS = 2
    AGREEMENTS = 3
    REVEALS = 4
    SUM = 5
    """For nothing: everything is there to find the sum."""
    DONE = 6
    FAILED = 7


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of the survivors' numbers."""

    words: Words
    survivors: tuple[NodeId, ...]


class Collector:
    """A hub in one round. Raises ValueError for terms that nobody would accept."""

    def __init__(self, terms: Terms) -> None:
        if why := unsound(terms):
            raise ValueError(why)
        self.terms = terms
        self.stage = Stage.HELLOS
        self.failure = Refusal("")
        self._statements: dict[Stage, dict[NodeId, Signed]] = {stage: {} for stage in Stage}
        self._hellos: dict[NodeId, MaskHello] = {}
        self._offered: set[bytes] = set()
        """Everybody's keys so far."""
        self._deals: dict[NodeId, MaskDeal] = {}
        self._envelopes: dict[NodeId, dict[NodeId, Envelopes]] = {}
        self._reveals: dict[NodeId, MaskReveal] = {}
        self._keys = self._dealt = b""
        self._sum: Words = np.zeros(terms.numel, dtype=np.uint32)

    # --- who ---------------------------------------------------------------------------------------------

    @property
    def expected(self) -> tuple[NodeId, ...]:
        """Those who may answer now."""
        match self.stage:
            case Stage.HELLOS:
                return self.terms.nodes
            case Stage.DEALS | Stage.NUMBERS | Stage.AGREEMENTS | Stage.REVEALS:
                return self._answered(Stage(self.stage - 1))
        return ()

    @property
    def waiting_for(self) -> tuple[NodeId, ...]:
        here = self._statements[self.stage]
        return tuple(node for node in self.expected if node not in here)

    @property
    def survivors(self) -> tuple[NodeId, ...]:
        """Those whose numbers are in the sum."""
        return self._answered(Stage.NUMBERS)

    def _answered(self, stage: Stage) -> tuple[NodeId, ...]:
        return tuple(sorted(self._statements[stage]))

    def told(self, node: NodeId) -> FromHub:
        """What this member is told now. It may ask again and again."""
        if self.stage == Stage.FAILED:
            return Failed(self.failure.why)
        if self.stage == Stage.DONE:
            return Finished()
        if node not in self.waiting_for:
            return Waiting(f"{len(self._statements[self.stage])} of {len(self.expected)} have answered")
        before = self._statements[Stage(self.stage - 1)] if self.stage else {}
        listed = tuple(before[one] for one in sorted(before))
        match self.stage:
            case Stage.DEALS:
                return Keys(listed)
            case Stage.NUMBERS:
                return Dealt(listed, {one: self._envelopes[one][node] for one in sorted(before)})
            case Stage.AGREEMENTS:
                return Survivors(self.survivors)
            case Stage.REVEALS:
                return Agreed(listed)
        return Waiting("the round has begun")

    # --- what members say ------------------------------------------------------------------------------------

    def take_hello(self, node: NodeId, signed: Signed) -> Refusal | None:
        if refusal := self._refused(Stage.HELLOS, node):
            return refusal
        hello = open_statement(signed, MaskHello, self.terms, node)
        if hello is not None:
            keys = {hello.pairing, hello.private}
            if len(keys) < 2 or keys & self._offered or not all(map(is_key, keys)):
                return Refusal("its keys are none, or somebody's already", node)
            self._offered |= keys
        return self._keep_if(hello is not None, node, signed)

    def take_deal(
        self, node: NodeId, signed: Signed, envelopes: Mapping[NodeId, Envelopes]
    ) -> Refusal | None:
        if refusal := self._refused(Stage.DEALS, node):
            return refusal
        deal = open_statement(signed, MaskDeal, self.terms, node)
        listed = [envelopes[one].digest for one in self._hellos if one in envelopes]
        if deal is None or deal.keys != self._keys or tuple(listed) != deal.envelopes:
            return Refusal("this is no deal in answer to the hellos", node)
        if not len(listed) == len(deal.own_marks) == len(deal.pair_marks) == len(self._hellos):
            return Refusal("a deal is not for everybody", node)
        self._envelopes[node] = {one: envelopes[one] for one in self._hellos}
        return self._keep_if(True, node, signed)

    def take_numbers(self, node: NodeId, signed: Signed, numbers: bytes) -> Refusal | None:
        if refusal := self._refused(Stage.NUMBERS, node):
            return refusal
        word = self.signed_numbers(node, signed)
        if word is None or len(numbers) != 4 * self.terms.numel:
            return Refusal("these are no masked numbers of this round", node)
        if word.numbers != digest_of([numbers]):
            return Refusal("the numbers are not those that were signed", node)
        np.add(self._sum, np.frombuffer(numbers, dtype="<u4"), out=self._sum)
        return self._keep_if(True, node, signed)

    def signed_numbers(self, node: NodeId, signed: Signed) -> MaskedInput | None:
        """A member's word for its numbers in this round, whatever they are."""
        word = open_statement(signed, MaskedInput, self.terms, node)
        return word if word is not None and word.dealt == self._dealt else None

    def take_agreement(self, node: NodeId, signed: Signed) -> Refusal | None:
        if refusal := self._refused(Stage.AGREEMENTS, node):
            return refusal
        word = open_statement(signed, MaskAgreement, self.terms, node)
        same = word is not None and word.dealt == self._dealt and word.survivors == self.survivors
        return self._keep_if(same, node, signed)

    def take_reveal(self, node: NodeId, signed: Signed) -> Refusal | None:
        if refusal := self._refused(Stage.REVEALS, node):
            return refusal
        word = open_statement(signed, MaskReveal, self.terms, node)
        why = wrong_share(self._opened(), word) if word is not None else "this is no reveal of this round"
        if word is None or why:
            return Refusal(why, node)
        self._reveals[node] = word
        return self._keep_if(True, node, signed)

    def _refused(self, stage: Stage, node: NodeId) -> Refusal | None:
        if self.stage != stage:
            return Refusal(f"the round is at {self.stage.name.lower()}, not at {stage.name.lower()}", node)
        if node not in self.expected:
            return Refusal("it does not take part (any more)", node)
        return Refusal("it has answered already", node) if node not in self.waiting_for else None

    def _keep_if(self, sound: bool, node: NodeId, signed: Signed) -> Refusal | None:
        if not sound:
            return Refusal(f"this does not answer the {self.stage.name.lower()} of this round", node)
        self._statements[self.stage][node] = signed
        return None

    # --- going on --------------------------------------------------------------------------------------------

    def close(self) -> Refusal | None:
        """Go on with those who have answered; the round has failed if they are too few."""
        if self.stage >= Stage.SUM:
            return None
        here, least = self._answered(self.stage), self.terms.threshold
        if len(here) < least:
            absent = (
                f"{len(here)} of {len(self.terms.roster)} members answered with {self.stage.name.lower()}"
            )
            return self._fail(Refusal(f"{absent}; it takes {least}"))
        statements = [self._statements[self.stage][node] for node in here]
        if self.stage == Stage.HELLOS:
            hellos = read_hellos(self.terms, statements)
            if isinstance(hellos, Refusal):
                return self._fail(hellos)
            self._hellos, self._keys = hellos, hash_statements(statements)
        elif self.stage == Stage.DEALS:
            deals = read_deals(self.terms, statements, self._keys, list(self._hellos))
            if isinstance(deals, Refusal):
                return self._fail(deals)
            self._deals, self._dealt = deals, hash_statements(statements)
        self.stage = Stage(self.stage + 1)
        return None

    def finish(self) -> Total | Refusal:
        """Take the masks off the sum: the heavy part."""
        if self.stage != Stage.SUM:
            return Refusal(f"the round is at {self.stage.name.lower()}, not at its sum")
        masks = masks_to_remove(self._opened())
        if isinstance(masks, Refusal):
            return self._fail(masks)
        apply(self._sum, masks)
        self.stage = Stage.DONE
        return Total(self._sum, self.survivors)

    def _fail(self, refusal: Refusal) -> Refusal:
        self.stage, self.failure = Stage.FAILED, refusal
        return refusal

    def _opened(self) -> Opened:
        return Opened(
            terms=self.terms,
            hellos=self._hellos,
            deals=self._deals,
            envelopes=self._envelopes,
            survivors=self.survivors,
            reveals=self._reveals,
        )
