"""Network coordinates: places in a small space whose distances are round trips, so that few measurements tell all.

In flow single round trips between two nodes; out flow expected ones between any two. Invariant: every place stays
finite and bounded whatever is measured, and what a node is moved by is bounded too, so that one false report is soon
outweighed. (Vivaldi's rule, with a height for what a node's own line adds.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.base.ids import NodeId
from shoal.wire.signed import digest

AXES = 3
GAIN, ERROR_GAIN = 0.25, 0.25
FARTHEST_S = 10.0
FIRST_ERROR = 1.0
LEAST_HEIGHT_S = 1e-4


@dataclass(slots=True)
class Place:
    """Where a node is, in seconds."""

    at: list[float]
    height_s: float
    error: float = FIRST_ERROR
    """How far off its distances are, as a share: 1 for no idea."""

    def distance_s(self, other: Place) -> float:
        return math.dist(self.at, other.at) + self.height_s + other.height_s


class Coordinates:
    def __init__(self) -> None:
        self._places: dict[NodeId, Place] = {}

    def measured(self, one: NodeId, two: NodeId, rtt_s: float) -> None:
        """A round trip from one node to another."""
        if one == two or not 0 < rtt_s <= FARTHEST_S:
            return
        here, there = self._place(one), self._place(two)
        self._pull(here, there, rtt_s)
        self._pull(there, here, rtt_s)

    def expected_s(self, one: NodeId, two: NodeId) -> float | None:
        """The round trip between two nodes; None while one of them is unknown."""
        here, there = self._places.get(one), self._places.get(two)
        if here is None or there is None or max(here.error, there.error) >= FIRST_ERROR:
            return None
        return here.distance_s(there)

    def forget(self, node: NodeId) -> None:
        self._places.pop(node, None)

    def _pull(self, here: Place, there: Place, rtt_s: float) -> None:
        distance_s = here.distance_s(there)
        off = rtt_s - distance_s
        share = here.error / max(here.error + there.error, 1e-9)
        error = min(FIRST_ERROR, abs(off) / rtt_s)
        here.error = min(FIRST_ERROR, here.error + ERROR_GAIN * share * (error - here.error))
        move = GAIN * share * max(-FARTHEST_S, min(FARTHEST_S, off))
        away = [mine - theirs for mine, theirs in zip(here.at, there.at, strict=True)]
        length = math.hypot(*away) + here.height_s + there.height_s
        here.at = [at + move * part / length for at, part in zip(here.at, away, strict=True)]
        height = here.height_s + move * (here.height_s + there.height_s) / length
        here.height_s = min(FARTHEST_S, max(LEAST_HEIGHT_S, height))

    def _place(self, node: NodeId) -> Place:
        """A new node begins near the middle, at a place that its id decides: two at one place have no direction."""
        if node not in self._places:
            words = [digest(f"{axis}/{node}".encode())[:8] for axis in range(AXES)]
            at = [1e-3 * (int(word, 16) / 2**32 - 0.5) for word in words]
            self._places[node] = Place(at, 1e-3)
        return self._places[node]
