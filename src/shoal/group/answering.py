"""A member's words in one round, each made once and said until it is heard.

In flow what the hub tells; out flow the next words, or the last ones again where the hub has not heard them. Invariant:
nothing is made twice, however often it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.base.errors import ShoalError
from shoal.group.messages import (
    Ask,
    Call,
    Idle,
    Reply,
    Said,
    SayAgreement,
    SayDeal,
    SayHello,
    SayReveal,
)
from shoal.secagg.member import Dealing, MaskedNumbers, Member, Step
from shoal.secagg.messages import Agreed, Dealt, Failed, Finished, Keys, Refusal, Survivors, Waiting
from shoal.secagg.shares import Draw
from shoal.secagg.terms import Terms
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed

_STEP_FOR: dict[type, Step] = {
    Keys: Step.DEAL,
    Dealt: Step.RECEIVE,
    Survivors: Step.AGREE,
    Agreed: Step.REVEAL,
}


class Answering:
    """One member in one round, over a line that loses words."""

    def __init__(self, identity: Identity, terms: Terms, draw: Draw) -> None:
        self._member = Member(identity, terms, draw)
        self._session = terms.session
        self._last: Said = Ask()

    @property
    def revealed(self) -> bool:
        """Whether this member has done all that a sum needs of it."""
        return self._member.step == Step.DONE

    def hello(self) -> Said | Refusal:
        return self._said(self._member.hello(), SayHello)

    def keep(self, said: Said) -> Said:
        self._last = said
        return said

    def is_for_numbers(self, told: Reply) -> bool:
        """Whether the hub waits for masked numbers that were not made yet."""
        return isinstance(told, Dealt) and self._member.step in (Step.RECEIVE, Step.MASK)

    def receive(self, told: Reply) -> Refusal | None:
        if not isinstance(told, Dealt) or self._member.step == Step.MASK:
            return None
        return self._member.receive(told.deals, told.envelopes)

    def mask(self, numbers: Callable[[], Any]) -> MaskedNumbers | Refusal:
        try:
            return self._member.mask(numbers())
        except ShoalError as error:
            return Refusal(error.cause)  # Training diverged here: the round goes on without this member.

    def answer(self, told: Reply) -> Said | Refusal | None:
        """What to say now; None once the round is over."""
        match told:
            case Finished() | Failed() | Idle():
                return None
            case Call():
                # The hub has not heard the hello, or calls to another round.
                return self._last if told.terms.session == self._session else None
            case Waiting():
                return Ask()
        due = _STEP_FOR[type(told)]
        if self._member.step > due:
            return self._last
        match told:
            case Keys():
                dealing = self._member.deal(told.hellos)
                if not isinstance(dealing, Dealing):
                    return dealing
                return self.keep(
                    SayDeal(dealing.signed, {str(node): one for node, one in dealing.envelopes.items()})
                )
            case Survivors():
                return self._said(self._member.agree(told.nodes), SayAgreement)
            case Agreed():
                return self._said(self._member.reveal(told.agreements), SayReveal)
        return Ask()

    def _said(self, word: Signed | Refusal, kind: Callable[[Signed], Said]) -> Said | Refusal:
        return word if isinstance(word, Refusal) else self.keep(kind(word))
