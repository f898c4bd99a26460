"""Which nodes are near one another, and who should be their hub.

In flow round trips between nodes (measured, or by network coordinates) and facts; out flow regions with hubs, each
choice with its reason. Invariant: pure; everybody is in exactly one region; the same input gives the same regions, in
whatever order it comes.
"""

from __future__ import annotations

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
"""More nodes than this are grouped one by one: comparing all pairs of groups would take too long."""


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
    facts: Mapping[NodeId, NodeFacts], rtt_s: RoundTrip, *, most: int = 16
) -> tuple[Region, ...]:
    """Group nodes by their round trips: two groups are joined while the mean round trip between them is near enough
    (average linkage), the nearest first. Nodes of which no round trip is known are one region by themselves."""
    nodes = sorted(facts)
    trips = {
        (one, two): trip
        for place, one in enumerate(nodes)
        for two in nodes[place + 1 :]
        if (trip := rtt_s(one, two)) is not None
    }
    near_s = max(NEAR_S, NEAR_SHARE * quantile(list(trips.values()), 0.5))
    known = {node for pair in trips for node in pair}
    alone: list[Group] = [(node,) for node in nodes if node in known]
    groups = _joined(alone, trips, near_s, most) if len(alone) <= FEW else _led(alone, rtt_s, near_s)
    lost = tuple(node for node in nodes if node not in known)
    downs = quantile([fact.down_bytes_s for fact in facts.values() if fact.down_bytes_s > 0], 0.5)
    found = [_region(group, facts, f"within {1e3 * near_s:.0f} ms of one another", downs) for group in groups]
    found += [_region(lost, facts, "no round trip known", downs)] if lost else []
    return tuple(sorted(found, key=lambda region: region.members))


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


def _led(alone: list[Group], rtt_s: RoundTrip, near_s: float) -> list[Group]:
    """For many nodes: each goes to the first region whose first member is near, or begins one."""
    groups: dict[NodeId, list[NodeId]] = {}
    for (node,) in alone:
        trips = ((rtt_s(leader, node), leader) for leader in groups)
        leader = next((one for trip, one in trips if trip is not None and trip <= near_s), node)
        groups.setdefault(leader, []).append(node)
    return [tuple(group) for group in groups.values()]


def _distance(one: Group, two: Group, trips: Mapping[tuple[NodeId, NodeId], float]) -> float | None:
    found = [trips[pair] for a in one for b in two if (pair := (min(a, b), max(a, b))) in trips]
    return sum(found) / len(found) if found else None


def _region(members: Group, facts: Mapping[NodeId, NodeFacts], why: str, usual_down: float) -> Region:
    ranked = sorted(members, key=lambda node: (-hub_score(facts[node]), node))
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
