"""What costs as much as there are nodes is not done for each of them: when many decide, and when they are told.

In flow what happens, with the time and the number of nodes; out flow whether to look at all of them now, and the
entries that are told together. Invariant: few nodes are looked at and told at once; many wait for a tick at the longest
to be looked at, and no entry is told before one that precedes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from shoal.base.ids import NodeId
from shoal.wire.messages import PeerAddress, Peers

FEW = 64
LOOK_S_A_NODE = 1e-4
"""Between two looks at everybody there is so much time for each: looking takes a small share of one core."""
TELL_S_A_NODE = 1e-3
"""The same for telling everybody who came, left and can be reached."""
MOST_UNTOLD = 256


@dataclass(slots=True)
class Pacing:
    """When to look at everybody."""

    tick_s: float
    _looked_at: float = -math.inf
    _news: bool = False

    def due(self, now: float, nodes: int, *, news: bool) -> bool:
        """Whether to look now. Without `news` nothing but time has passed."""
        self._news |= news
        pause_s = min(self.tick_s, nodes * LOOK_S_A_NODE) if self._news else self.tick_s
        if nodes > FEW and now - self._looked_at < pause_s:
            return False
        self.looked(now)
        return True

    def looked(self, now: float) -> None:
        self._looked_at, self._news = now, False


@dataclass(slots=True)
class Telling:
    """Entries of who came and left, which are told several at a time where there are many to tell."""

    untold: list[bytes] = field(default_factory=list)
    _told_at: float = -math.inf

    def take(self, encoded: bytes, now: float, nodes: int, *, waits: bool) -> tuple[bytes, ...]:
        """The next entry; those to tell now. One that `waits` may be told with the next."""
        self.untold.append(encoded)
        return self.due(now, nodes) if waits else self._all(now)

    def due(self, now: float, nodes: int) -> tuple[bytes, ...]:
        """Those that have waited long enough."""
        waits = len(self.untold) < MOST_UNTOLD and is_soon(now, self._told_at, nodes)
        return () if waits else self._all(now)

    def _all(self, now: float) -> tuple[bytes, ...]:
        told = tuple(self.untold)
        self.untold.clear()
        if told:
            self._told_at = now
        return told


Reachable = tuple[tuple[NodeId, str], ...]


def news_of(peers: Peers, since: int, known: Reachable, now: Reachable) -> Peers:
    """What everybody is told when others come within reach or out of it: few all of it, many what changed."""
    if len(now) <= FEW:
        return peers
    was, gone = dict(known), tuple(sorted(dict(known).keys() - dict(now).keys()))
    came = tuple(PeerAddress(node, address) for node, address in now if was.get(node) != address)
    return msgspec.structs.replace(peers, peers=came, since=since, gone=gone)


def is_soon(now: float, told_at: float, nodes: int) -> bool:
    """Whether it is too soon to tell so many nodes something again that can wait."""
    return nodes > FEW and now - told_at < nodes * TELL_S_A_NODE
