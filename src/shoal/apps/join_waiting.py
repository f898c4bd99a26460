"""What a joining node waits for, and about how long: the words between joining and the first round.

In flow what the node has, what it needs and how fast that comes; out flow a few words. Invariant: a guess is only made
from what was measured here or is in the log; what nobody can tell is told as such.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace

from shoal.apps.node_status import NodeNow
from shoal.base.units import show_bytes
from shoal.node.service import NodeService

NOT_YET = "not in this round yet"
"""How `node_status` says that a node is connected and has no work."""
WINDOW_S = 5.0
"""How far back the speed of a download is taken from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a node stands on its way into a round."""

    state_bytes: int
    state_here_bytes: int
    behind: int
    """Rounds to fold until it has the run's state."""
    has_state: bool
    round_s: float
    """How long rounds take, by the log; 0 while nobody knows."""
    since_seal_s: float
    """How long ago the last one ended."""
    short_of: int = 0
    """Nodes that the first round still waits for."""


def waits_for(standing: Standing, bytes_s: float) -> str:
    """What it waits for now, and about how long."""
    if not standing.has_state:
        left = max(0, standing.state_bytes - standing.state_here_bytes)
        words = f"waits for the state: {show_bytes(standing.state_here_bytes)} of {show_bytes(standing.state_bytes)}"
        return f"{words}, {_about(left / bytes_s)}" if bytes_s > 0 else words
    if standing.behind:
        return f"catches up: {standing.behind} round{'s' if standing.behind > 1 else ''} to fold"
    if standing.short_of:
        count = standing.short_of
        return f"waits for {count} more node{'s' if count > 1 else ''} to begin the first round; nobody can tell when"
    if standing.round_s <= 0:
        return "waits for the next round; nobody can tell yet how long rounds take"
    return f"waits for the next round, {_about(max(0.0, standing.round_s - standing.since_seal_s))}"


def _about(seconds: float) -> str:
    if seconds < 1:
        return "any moment"
    return f"about {seconds:.0f} s" if seconds < 120 else f"about {seconds / 60:.0f} min"


def standing_of(service: NodeService, wall_ms: int) -> Standing:
    """Where the node stands, by its own log and disk."""
    machine, view = service.machine, service.machine.view
    saved = view.best_start() if view.genesis is not None else None
    blob_here = saved is not None and service.blobs.has(saved.blob)
    here = 0 if saved is None else saved.size_bytes if blob_here else service.blobs.arrived_bytes(saved.blob)
    present = sum(member.present for member in view.members.values())
    needed = machine.recipe.membership.min_nodes if machine.recipe is not None and view.round == 0 else 0
    last_ms = view.pace.last_seal_ms
    return Standing(
        state_bytes=saved.size_bytes if saved else 0,
        state_here_bytes=here,
        behind=sum(step.position > machine.at for step in view.path) if machine.at >= 0 else 0,
        has_state=machine.at >= 0,
        round_s=view.pace.seal_ms / 1000,
        since_seal_s=(wall_ms - last_ms) / 1000 if last_ms is not None else 0.0,
        short_of=max(0, needed - present),
    )


class Speed:
    """How fast bytes come, over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, now_s: float, down_bytes: int) -> float:
        """Bytes a second, now that so many have come."""
        self._seen.append((now_s, down_bytes))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()
        begun_s, begun = self._seen[0]
        return (down_bytes - begun) / (now_s - begun_s) if now_s > begun_s else 0.0


def with_wait(now: NodeNow, service: NodeService, speed: Speed) -> NodeNow:
    """The node as it is now, saying also what it waits for if it is not in a round."""
    bytes_s = speed.at(time.monotonic(), now.down_bytes)
    if now.standing != NOT_YET or service.machine.view.genesis is None:
        return now
    return replace(now, standing=waits_for(standing_of(service, time.time_ns() // 1_000_000), bytes_s))
