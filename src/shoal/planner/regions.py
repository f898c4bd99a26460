"""Which nodes are near one another, and who should be their hub.

In flow round trips between nodes (measured, or by network coordinates) and facts; out flow regions with hubs, each
choice with its reason. Invariant: pure; everybody is in exactly one region, unless nobody may be a hub: then there is
none; the same input gives the same regions, in whatever order it comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from shoal.base.ids import NodeId
from shoal.measure.forecast import quantile
from shoal.measure.telemetry import NodeFacts

RoundTrip = Callable[[NodeId, NodeId], float | None]
Group = tuple[NodeId, ...]
NEAR_S = 0.03
"""Machines that are nearer than this are in one region whatever the others are like."""
NEAR_SHARE = 0.5
"""Else those that are nearer to one another than this share of the fleet's middle round trip."""
THIN_SHARE = 0.5
"""A downlink below this share of the middle one is thin: it is better given one digest than everybody's updates."""
SLOW_HUB_BYTES_S = 125_000.0
FEW = 64
"""Of more nodes than this about so many are grouped, and the others go to the groups: all pairs would take too long."""
COMPARED = 8
"""With so many of each group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Near machines. The hub syncs with other regions' for all of them."""

    members: tuple[NodeId, ...]
    hub: NodeId
    heirs: tuple[NodeId, ...]
    """Who is the hub when it is gone, in order."""
    reason: str
    thin: tuple[NodeId, ...] = ()
    """Those whose downlinks want digests."""

    def hub_of(self, live: Collection[NodeId]) -> NodeId | None:
        """The first of hub and heirs that is here; None if nobody is."""
        return next((node for node in (self.hub, *self.heirs) if node in live), None)


def find_regions(
    facts: Mapping[NodeId, NodeFacts],
    rtt_s: RoundTrip,
    *,
    most: int = 16,
    able: Collection[NodeId] | None = None,
) -> tuple[Region, ...]:
    """Group nodes by their round trips: two groups are joined while the mean round trip between them is near enough
    (average linkage), the nearest first. Nodes of which no round trip is known are one region by themselves. Where only
    the `able` may be hubs, those who have none of them near go to the nearest region that has one."""
    nodes = sorted(facts)
    fit = frozenset(nodes if able is None else able)
    some = nodes[:: max(1, len(nodes) // FEW)]
    trips = {
        (min(one, two), max(one, two)): trip
        for one in nodes
        for two in some
        if one != two and (trip := rtt_s(min(one, two), max(one, two))) is not None
    }
    near_s = max(NEAR_S, NEAR_SHARE * quantile(list(trips.values()), 0.5))
    known = {node for pair in trips for node in pair}
    seeds: list[Group] = [(node,) for node in some if node in known]
    rest = sorted(known.difference(some))
    groups = _with_rest(_joined(seeds, trips, near_s, most), rest, rtt_s, near_s, most)
    why = dict.fromkeys(groups, f"within {1e3 * near_s:.0f} ms of one another")
    if lost := tuple(node for node in nodes if node not in known):
        why[lost] = "no round trip known"
    found = [
        make_region(tuple(sorted((*group, *guests))), facts, why[group], fit)
        for group, guests in _hosted(list(why), fit, trips).items()
    ]
    return tuple(sorted(found, key=lambda region: region.members))


def _hosted(
    groups: list[Group], able: Collection[NodeId], trips: Mapping[tuple[NodeId, NodeId], float]
) -> dict[Group, list[NodeId]]:
    """Groups that have somebody able, each with those of the others that are nearest to it."""
    guests: dict[Group, list[NodeId]] = {group: [] for group in groups if not {*able}.isdisjoint(group)}
    for node in (node for group in groups if group not in guests for node in group):
        trip_to = {group: _distance((node,), group, trips) for group in guests}
        far = (math.inf if trip is None else trip for trip in trip_to.values())
        if nearest := min(zip(far, trip_to, strict=True), default=None):
            guests[nearest[1]].append(node)
    return guests


def _joined(
    groups: list[Group], trips: Mapping[tuple[NodeId, NodeId], float], near_s: float, most: int
) -> list[Group]:
    while len(groups) > 1:
        ranked = [
            (distance, one, two)
            for place, one in enumerate(groups)
            for two in groups[place + 1 :]
            if (distance := _distance(one, two, trips)) is not None
        ]
        if not ranked:
            break
        distance, one, two = min(ranked)
        if distance > near_s and len(groups) <= most:
            break
        groups = [group for group in groups if group not in (one, two)] + [tuple(sorted((*one, *two)))]
    return groups


def _with_rest(
    groups: list[Group], rest: list[NodeId], rtt_s: RoundTrip, near_s: float, most: int
) -> list[Group]:
    """Of many nodes, those that were not compared with everybody: each goes to the nearest group, or begins one."""
    found = [list(group) for group in groups]
    for node in rest:
        trips = [(mean_trip_s(node, group[:COMPARED], rtt_s), place) for place, group in enumerate(found)]
        near = min(((trip, place) for trip, place in trips if trip is not None), default=None)
        if near is not None and (near[0] <= near_s or len(found) >= most):
            found[near[1]].append(node)
        else:
            found.append([node])
    return [tuple(sorted(group)) for group in found]


def mean_trip_s(node: NodeId, others: Collection[NodeId], rtt_s: RoundTrip) -> float | None:
    """The mean of the round trips to those that are known; None if none is."""
    trips = [trip for other in sorted(others) if other != node and (trip := rtt_s(node, other)) is not None]
    return sum(trips) / len(trips) if trips else None


def _distance(one: Group, two: Group, trips: Mapping[tuple[NodeId, NodeId], float]) -> float | None:
    found = [trips[pair] for a in one for b in two if (pair := (min(a, b), max(a, b))) in trips]
    return sum(found) / len(found) if found else None


def make_region(
    members: Group, facts: Mapping[NodeId, NodeFacts], why: str, able: Collection[NodeId]
) -> Region:
    """These nodes, with the best of the able ones as their hub; there must be one."""
    fit = [node for node in members if node in able]
    ranked = sorted(fit, key=lambda node: (-hub_score(facts[node]), node))
    usual_down = quantile([fact.down_bytes_s for fact in facts.values() if fact.down_bytes_s > 0], 0.5)
    hub = facts[ranked[0]]
    rate = f"{8e-6 * hub.up_bytes_s:.0f} Mbit/s up" if hub.up_bytes_s else "uplink unknown"
    reason = (
        f"{len(members)} nodes {why}; hub by uplink and uptime: {rate}, here {hub.uptime:.0%} of the time"
    )
    thin = tuple(node for node in members if 0 < facts[node].down_bytes_s < THIN_SHARE * usual_down)
    return Region(members=members, hub=ranked[0], heirs=tuple(ranked[1:]), reason=reason, thin=thin)


def hub_score(fact: NodeFacts) -> float:
    """What a hub needs: an uplink, and to be there. One that was away a tenth of the time is worth half."""
    there = max(0.0, 1 - 5 * (1 - fact.uptime)) * fact.delivered * (1 - fact.failed)
    return (fact.up_bytes_s or SLOW_HUB_BYTES_S) * there
