"""The hub's door: who is here, and what each member is told.

In flow members' requests, from many threads at once; out flow replies, and in the end the sum. Invariant: nobody is
heard who has not shown the group's token; one member's word costs the hub one bounded step, whatever it says.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.host import Refused
from shoal.base.ids import BlobId, NodeId
from shoal.group.messages import (
    Ask,
    Call,
    Enter,
    Idle,
    Reply,
    Said,
    SayAgreement,
    SayDeal,
    SayHello,
    SayNumbers,
    SayReveal,
    Task,
    read_said,
)
from shoal.secagg.collector import Collector, Stage, Total
from shoal.secagg.messages import Refusal
from shoal.secagg.terms import MOST_MEMBERS
from shoal.wire.identity import node_id

MOST_DISMISSED = 4096
_STAGES: dict[type, Stage] = {
    SayHello: Stage.HELLOS,
    SayDeal: Stage.DEALS,
    SayNumbers: Stage.NUMBERS,
    SayAgreement: Stage.AGREEMENTS,
    SayReveal: Stage.REVEALS,
}


@dataclass(slots=True)
class _Guest:
    public: bytes
    heard_at: float
    knows: bool = False
    """Whether it was told that the run is over."""


class Desk:
    """One group's. `lease_s`: who is unheard for so long is not waited for."""

    def __init__(
        self,
        *,
        token: str,
        now: Callable[[], float],
        read: Callable[[BlobId], bytes],
        size: Callable[[BlobId], int | None],
        admits: Callable[[NodeId], bool],
    ) -> None:
        self._token, self._now, self._admits = token, now, admits
        self._read, self._size = read, size
        self.lease_s = 15.0
        self._lock = threading.Lock()
        self._guests: dict[NodeId, _Guest] = {}
        self._round: Collector | None = None
        self._tasks: Mapping[NodeId, Task] = {}
        self._dismissed: dict[NodeId, None] = {}
        self._taken: list[BlobId] = []
        self._idle = Idle("the hub is getting ready")

    # --- the hub -------------------------------------------------------------------------------------------

    def is_guest(self, node: NodeId) -> bool:
        return node in self._guests

    def present(self) -> list[bytes]:
        """The keys of those who are here, in the order of their ids."""
        with self._lock:
            return [self._guests[node].public for node in sorted(self._guests) if self._is_here(node)]

    def begin(self, collector: Collector, tasks: Mapping[NodeId, Task]) -> None:
        """Call everybody in the roster to a round."""
        with self._lock:
            self._round, self._tasks = collector, tasks

    def end(self, reason: str, over: str = "") -> tuple[BlobId, ...]:
        """No round goes on any more; what members are told until the next one. The blobs that were added up."""
        with self._lock:
            self._round, self._tasks, self._idle = None, {}, Idle(reason[:200], over[:1000])
            taken, self._taken = tuple(self._taken), []
            return taken

    def unaware(self) -> bool:
        """Whether somebody is here who has not heard that the run is over."""
        with self._lock:
            return any(self._is_here(node) and not guest.knows for node, guest in self._guests.items())

    def dismiss(self, node: NodeId) -> None:
        """Let nobody in again who was shown to have spoilt a round."""
        with self._lock:
            self._guests.pop(node, None)
            self._dismissed[node] = None
            if len(self._dismissed) > MOST_DISMISSED:
                del self._dismissed[next(iter(self._dismissed))]

    def advance(self, *, late: bool) -> Stage:
        """Go on once everybody who is here has answered, or in any case if it is late; what is waited for now."""
        with self._lock:
            assert self._round is not None
            here = [node for node in self._round.waiting_for if self._is_here(node)]
            if self._round.stage < Stage.SUM and (late or not here):
                self._round.close()
            return self._round.stage

    def finish(self) -> Total | Refusal:
        """The sum. It takes a while, in which members are told to wait: nothing more is taken from them."""
        assert self._round is not None
        return self._round.finish()

    def _is_here(self, node: NodeId) -> bool:
        return self._now() - self._guests[node].heard_at < self.lease_s if node in self._guests else False

    # --- members -------------------------------------------------------------------------------------------

    def put(self, body: bytes, sender: NodeId) -> bytes:
        """Take a member's word; what it is told. Raises `Refused`."""
        said = read_said(body)
        if said is None:
            raise Refused("this is nothing that a member may say")
        with self._lock:
            if isinstance(said, Enter):
                self._enter(said, sender)
            guest = self._guests.get(sender)
            if guest is None:
                raise Refused("enter with the group's token first")
            guest.heard_at = self._now()
            if not isinstance(said, Enter | Ask):
                self._take(said, sender)
            told = self._round_of(sender) if isinstance(said, Ask) and said.beat else self._told(sender)
            guest.knows = isinstance(told, Idle) and bool(told.over)
            return msgspec.msgpack.encode(told)

    def _enter(self, said: Enter, sender: NodeId) -> None:
        if not hmac.compare_digest(said.token.encode(), self._token.encode()):
            raise Refused("SH-JOIN-02: the group's token is another")
        if sender in self._dismissed:
            raise Refused("SH-JOIN-13: this node has spoilt a round of the group")
        if node_id(said.public) != sender or not self._admits(sender):
            raise Refused("SH-JOIN-14: the run takes only nodes on its list")
        if sender not in self._guests and len(self._guests) >= MOST_MEMBERS:
            gone = [node for node in self._guests if not self._is_here(node)]
            if not gone:
                raise Refused("SH-JOIN-11: the group takes no more members")
            del self._guests[gone[0]]
        self._guests[sender] = _Guest(said.public, self._now())

    def _take(self, said: Said, sender: NodeId) -> None:
        """A word that comes again, or too late, changes nothing: the reply says where the round stands."""
        here = self._round
        if here is None or here.stage != _STAGES[type(said)] or sender not in here.waiting_for:
            return
        if refusal := self._give(here, said, sender):
            raise Refused(refusal.why)

    def _give(self, here: Collector, said: Said, sender: NodeId) -> Refusal | None:
        match said:
            case SayHello():
                return here.take_hello(sender, said.word)
            case SayDeal():
                envelopes = {NodeId(node): one for node, one in said.envelopes.items()}
                return here.take_deal(sender, said.word, envelopes)
            case SayNumbers():
                return self._numbers(here, said, sender)
            case SayAgreement():
                return here.take_agreement(sender, said.word)
            case SayReveal():
                return here.take_reveal(sender, said.word)
        return None

    def _numbers(self, here: Collector, said: SayNumbers, sender: NodeId) -> Refusal | None:
        if here.signed_numbers(sender, said.word) is None:
            return Refusal("these are no masked numbers of this round", sender)
        if self._size(BlobId(said.blob)) != 4 * here.terms.numel:
            return Refusal("the masked numbers are not here", sender)
        try:
            numbers = self._read(BlobId(said.blob))
        except (FileNotFoundError, ShoalError):
            return Refusal("the masked numbers are not here", sender)
        refusal = here.take_numbers(sender, said.word, numbers)
        self._taken += [] if refusal else [BlobId(said.blob)]
        return refusal

    def _told(self, node: NodeId) -> Reply:
        here = self._round
        if here is None or node not in self._tasks:
            return self._idle
        called = here.stage == Stage.HELLOS and node in here.waiting_for
        return self._round_of(node) if called else here.told(node)

    def _round_of(self, node: NodeId) -> Idle | Call:
        if self._round is None or node not in self._tasks:
            return self._idle
        return Call(self._round.terms, self._tasks[node])
