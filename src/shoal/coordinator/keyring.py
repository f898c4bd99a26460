"""Which keys a node shows at the door, and whether they speak for whom it says it is.

In flow a hello and the view; out flow the key that must have signed its proof, and what of its line of keys the log
has not yet. Invariant: a member speaks by its current key alone; how it came by that one, the log's own rule checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.coordinator.admission import node_of
from shoal.runlog.chain import BadEntry, genesis_of
from shoal.runlog.entries import Rotated
from shoal.runlog.keys import Handover, Keys, Revocation, news_in, open_line, shown_line
from shoal.runlog.view import RunView
from shoal.wire.hybrid import PUBLIC_BYTES
from shoal.wire.identity import Identity, is_hybrid, node_id
from shoal.wire.messages import Hello, Proof, Refuse
from shoal.wire.signed import Signed, is_signed, open_signed


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a node shows of its keys."""

    public: bytes
    """Its first key, of the kind that the run asks for."""
    speaker: bytes
    """The key that must have signed."""
    line: tuple[Handover, ...] = ()
    """What leads from the key that the log has to that one."""


def read_keys(hello: Hello, view: RunView) -> Shown | Refuse:
    """The node's keys, or why they do not do."""
    public = hello.public
    if view.genesis is not None and is_hybrid(view.genesis.coordinator):
        public = hello.hybrid
        if not is_hybrid(public) or public[:PUBLIC_BYTES] != hello.public:
            return _hybrid_wanted()
    node = node_of(hello)
    known = view.keys.get(node)
    if known is not None and not known.current:
        return revoked()
    current = known.current if known is not None else public
    line = news_in(hello.line, current)
    if known is not None and not line and _is_replaced(hello.proof, known):
        return _replaced()
    try:
        speaker = open_line(line, node, current)[-1].new if line else current
    except BadEntry:
        return _replaced()
    return Shown(public=public, speaker=speaker, line=line)


class Rechecking(Protocol):
    def recheck(self) -> None:
        """Forget what is signed by a key that does not count any more."""


class KeyDesk:
    """One run's keys, as its coordinator changes them: its own, and those of members."""

    def __init__(self, view: RunView, identity: Identity, kept: tuple[Rechecking, ...]) -> None:
        self._view, self._identity, self._kept = view, identity, kept
        self.signer = identity.for_key(view.genesis.coordinator if view.genesis else b"")

    def own(self) -> Rotated | None:
        """What must be said before anything else, if the coordinator's key was replaced."""
        known = self._view.keys.get(self._identity.node)
        if known is None or not self._identity.line or known.current == self.signer.public:
            return None
        return self.handed_over(self._identity.node, _own_news(self._identity, known.current))

    def handed_over(self, node: NodeId, line: tuple[Handover, ...]) -> Rotated | None:
        """The entry for a change of a node's key; None if the log has it, or its rule does not take it."""
        known = self._view.keys.get(node)
        if not line or known is None:
            return None
        try:
            open_line(line, node, known.current)
        except BadEntry:
            return None
        return Rotated(node=node, line=line)

    def may_revoke(self, node: NodeId) -> bool:
        known = self._view.keys.get(node)
        return node in self._view.members and known is not None and bool(known.current)

    def recheck(self) -> None:
        """Keys have changed: what is kept and not in the log yet must still hold, or go."""
        for one in self._kept:
            one.recheck()


def _own_news(identity: Identity, current: bytes) -> tuple[Handover, ...]:
    return news_in(shown_line(identity, hybrid=is_hybrid(current)), current)


def leads_to(view: RunView, identity: Identity) -> bool:
    """Whether an identity may write a run's log: by the key that the log has, or by one that follows it."""
    known = view.keys.get(view.coordinator)
    if known is None or identity.node != view.coordinator:
        return False
    signer = identity.for_key(known.current)
    if known.current == signer.public:
        return True
    try:
        line = open_line(_own_news(identity, known.current), identity.node, known.current)
    except BadEntry:
        return False
    return line[-1].new == signer.public


def check_founder(store: LogStore, identity: Identity) -> None:
    """Raise SH-KEY-02 if all runs of the store are another's: who has this identity could stand by, and never lead."""
    found = {run: genesis_of(list(store.read(run, 0, 1))) for run in store.runs()}
    founders = {run: node_id(genesis.coordinator) for run, genesis in found.items() if genesis is not None}
    if founders and identity.node not in founders.values():
        raise of_another_key(next(iter(founders)))


def of_another_key(run: RunId) -> ShoalError:
    return ShoalError(
        "SH-KEY-02",
        f"run {run[:12]} belongs to a coordinator with another key than this one's",
        "start the coordinator with the home that founded the run, or in which its key was replaced; one that is to "
        "stand by needs a copy of that key",
    )


def own_keys(identity: Identity) -> tuple[bytes, ...]:
    """The keys of either kind that an identity began with, and has now."""
    pair = dict.fromkeys((identity, identity.first))
    return tuple(key for one in pair for key in (one.public, one.hybrid.public))


def revocation_in(hello: Hello, view: RunView) -> Signed | None:
    """The node's own word that its keys count no more, if it says so."""
    known, node = view.keys.get(node_of(hello)), node_of(hello)
    if hello.revoke is None or known is None or node not in view.members:
        return None
    word = open_signed(hello.revoke, Revocation, known.current)
    own = word is not None and word.node == node and word.run == view.run
    return hello.revoke if own else None


def _is_replaced(proof: Signed, known: Keys) -> bool:
    return any(is_signed(proof, Proof, public) for public, _ in known.former)


def _replaced() -> Refuse:
    return Refuse(
        code="SH-KEY-03",
        cause="another key speaks for this node, and no word of its keys leads from that one to this",
        next_step="start it from the home in which `shoal keys rotate` made the new key",
    )


def revoked() -> Refuse:
    return Refuse(
        code="SH-KEY-04",
        cause="this node's keys were revoked",
        next_step="join from a new home, as a new node",
    )


def not_a_member() -> Refuse:
    return Refuse(
        code="SH-CREDIT-02",
        cause="this node's keys have no part in the run",
        next_step="revoke them in the runs that the node has joined",
    )


def _hybrid_wanted() -> Refuse:
    return Refuse(
        code="SH-KEY-05",
        cause="this run asks for Ed25519 and ML-DSA-65 signatures together",
        next_step="join with a version of shoal that does it by itself: pip install -U shoal",
        hybrid=True,
    )
