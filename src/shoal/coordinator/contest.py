"""One run here, of those that a majority keeps: what this coordinator has of it, and whether it leads.

In flow entries that are final, and others' word on who leads; out flow the voters, a copy for them, and a ballot.
Invariant: the store has final entries only, in order; everything that touches it is done one after the other.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from shoal.base.errors import ShoalError
from shoal.base.host import Host
from shoal.base.ids import NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.coordinator.admission import TOKEN_PREFIX
from shoal.coordinator.changing import WISH_PREFIX
from shoal.coordinator.doorkeeping import USE_PREFIX
from shoal.runlog.ballots import Election, Tail, Tally
from shoal.runlog.chain import BadEntry, genesis_of
from shoal.runlog.voter import Voter
from shoal.strategy.recipe import recipe_in_log
from shoal.wire.ballots import NO_BALLOT, Ballot, Known
from shoal.wire.signed import digest

COPIED = (TOKEN_PREFIX, WISH_PREFIX, USE_PREFIX)
"""The small values that those who stand by copy: tickets, and what the organiser has changed."""
VALUES_S = 5.0
NEVER = -1e9


class Caller(Protocol):
    """A member's connection: frames are queued, or it is cut off."""

    def put(self, frame: bytes) -> bool: ...


@dataclass(slots=True)
class Contest:
    run: RunId
    recipe: str
    """As the log has it."""
    coordinators: tuple[str, ...]
    tail: Tail
    voter: Voter
    leading: bool = False
    served: bool = False
    """Whether what it leads is in service."""
    ballot: Ballot = NO_BALLOT
    """The one it leads with, or last tried with."""
    highest: Ballot = NO_BALLOT
    """The highest it has heard of."""
    led_by: Ballot = NO_BALLOT
    """The highest that somebody was heard to lead with."""
    leader: str = ""
    """The address of the one that leads elsewhere."""
    leader_at: float = NEVER
    """When that was last heard."""
    yields_until: float = NEVER
    """Until then it asks for no votes: somebody else does."""
    waiting: str = ""
    """In words, what it waits for while nobody leads."""
    silent: frozenset[str] = frozenset()
    """Who was asked last and gave no vote, though nobody was preferred."""
    told: str = ""
    told_at: float = NEVER
    """The last such words that were said aloud, and when."""
    led_at: float = NEVER
    """When somebody was last seen to lead."""
    held: dict[NodeId, Caller] = field(default_factory=dict)
    """Members that have come here, while it does not lead."""
    held_at: dict[NodeId, float] = field(default_factory=dict)
    values: tuple[tuple[str, bytes], ...] = ()
    values_at: float = NEVER
    """The small values, and when they were read."""
    counting: Election | Tally | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when an answer has come in, or the lead is lost."""
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever uses the store."""


def enter(store: LogStore, run: RunId, entries: list[bytes], public: bytes) -> Contest | None:
    """A run of the store, if it is one that a majority keeps. Raises SH-LOG-01 or SH-KEY-02."""
    genesis = genesis_of(entries)
    coordinators = recipe_in_log(genesis.recipe).membership.coordinators if genesis is not None else ()
    if genesis is None or not coordinators:
        return None
    if genesis.coordinator != public:
        raise ShoalError(
            "SH-KEY-02",
            f"run {run[:12]} was founded under another coordinator's key",
            "copy HOME/coordinator/key of the coordinator that founded the run",
        )
    tail = Tail(run, public, coordinators)
    for encoded in entries:
        try:
            tail.take(encoded)
        except BadEntry as error:
            raise ShoalError(
                "SH-LOG-01",
                f"run {run[:12]}: entry {tail.length} {error}",
                "run: shoal ckpt verify --repair; the others give what is then missing. An empty store would have "
                "forgotten what this coordinator promised as a voter",
            ) from None
    return Contest(run, genesis.recipe, coordinators, tail, Voter(store, run, lambda: public))


async def small_values(host: Host, store: LogStore, contest: Contest) -> tuple[tuple[str, bytes], ...]:
    """As they were a moment ago: they seldom change, and are asked for often."""
    if host.clock.now() - contest.values_at > VALUES_S:
        contest.values_at = host.clock.now()
        found = await host.work(lambda: [store.kept(contest.run, prefix) for prefix in COPIED])
        contest.values = tuple(sorted(pair for values in found for pair in values.items()))
    return contest.values


def values_hash(values: tuple[tuple[str, bytes], ...]) -> str:
    return digest(repr(values).encode())


NOTHING = values_hash(())


async def known(host: Host, store: LogStore, contest: Contest) -> Known:
    values = await small_values(host, store, contest)
    return Known(contest.run, contest.tail.length, values_hash(values))
