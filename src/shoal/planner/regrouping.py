"""Which machines of a pool are which region of a run, as machines and hubs come and go.

In flow the machines that are here, the regions as they stand and the hubs that are lost; out flows how they stand from
now on, with the reason, or nothing where that is the same. Invariant: pure; nobody is in two regions, every hub is a
machine that others can reach, and who is well placed stays: small differences in round trips move nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from shoal.base.ids import NodeId
from shoal.measure.telemetry import NodeFacts
from shoal.planner.regions import Region, RoundTrip, find_regions, hub_score, make_region, mean_trip_s
from shoal.runlog.entries import PlannedRegion, Regions
from shoal.runlog.rules import MAX_TEXT

MOVE_SHARE = 0.5
"""A machine moves to a region whose machines are nearer than this share of what its own region's are."""
HEIRS = 8
"""So many are named; if none of them is there, it is any other who may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One that was lent, and is here."""

    facts: NodeFacts
    able: bool = False
    """Others can reach it: it may be a hub."""
    label: str = ""
    """The region that its owner says it is in; "" to go by round trips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """A run's part of the pool as it is now."""

    machines: Mapping[NodeId, Machine]
    rtt_s: RoundTrip
    standing: tuple[PlannedRegion, ...] = ()
    lost: Mapping[NodeId, str] = field(default_factory=dict)
    """Hubs that are to be replaced, and why."""
    last: int = 0
    """The highest number that a region had."""
    may_move: bool = False
    """Whether machines that have a region may be given another."""

    @property
    def facts(self) -> dict[NodeId, NodeFacts]:
        return {node: machine.facts for node, machine in self.machines.items()}

    @property
    def able(self) -> frozenset[NodeId]:
        return frozenset(
            node for node, machine in self.machines.items() if machine.able and node not in self.lost
        )


def regroup(pooled: Pooled) -> Regions | None:
    """The regions from now on; None if they are as they stand."""
    change = _Change(pooled)
    change.replace_hubs()
    change.place_newcomers()
    if pooled.may_move:
        change.move()
    items = tuple(change.result())
    same = [_gist(item) for item in items] == [_gist(item) for item in pooled.standing]
    return None if same else Regions(items=items, reason=_clipped("; ".join(change.news)))


def _gist(region: PlannedRegion) -> tuple[int, tuple[NodeId, ...]]:
    return region.number, region.members


class _Change:
    """One change in the making: by number, the regions and who is in them."""

    def __init__(self, pooled: Pooled) -> None:
        self._pooled = pooled
        self._regions: dict[int, PlannedRegion] = {}
        self._members: dict[int, set[NodeId]] = {}
        self._next = pooled.last + 1
        self._found: tuple[Region, ...] | None = None
        self._led = {pooled.machines[node].label for node in pooled.able}
        """Labels under which somebody may be a hub: the others say nothing."""
        self.news: list[str] = []

    def replace_hubs(self) -> None:
        """Who is gone is in no region; where that is the hub, its heir begins another one."""
        pooled = self._pooled
        for region in pooled.standing:
            here = {node for node in region.members if node in pooled.machines}
            if len(here) < len(region.members):
                self.news.append(f"{len(region.members) - len(here)} left region {region.number}")
            if region.hub in here and region.hub not in pooled.lost:
                self._regions[region.number], self._members[region.number] = region, here
                continue
            why = pooled.lost.get(region.hub, "left")
            heirs = (*region.heirs, *_ranked(here, pooled))
            heir = next((node for node in heirs if node in here and node in pooled.able), None)
            gone = f"the hub of region {region.number}, {region.hub[:8]}, {why}"
            self.news.append(f"{gone}: {f'its heir is {heir[:8]}' if heir else 'nobody can take over'}")
            if heir is not None:
                self._begin(heir, here, f"in the place of region {region.number}, whose hub {why}")

    def place_newcomers(self) -> None:
        """Who has no region goes where it is near; where there is none near, one begins."""
        placed = set().union(*self._members.values())
        for found in self._ideal() if placed != {*self._pooled.machines} else ():
            new = {node for node in found.members if node not in placed}
            host = self._host(found)
            if new and host is not None:
                self.news.append(f"{len(new)} came to region {host}")
                self._members[host] |= new
            elif new:
                self._begin(found.hub, new, found.reason)

    def move(self) -> None:
        """Who is much nearer to another region goes there, unless it is a hub."""
        hubs = {region.hub for region in self._regions.values()}
        for found in self._ideal():
            host = self._host(found)
            for node in found.members if host is not None else ():
                own = next(number for number, members in self._members.items() if node in members)
                if host is not None and own != host and node not in hubs and self._is_nearer(node, host, own):
                    self.news.append(f"{node[:8]} is nearer to region {host} than to {own}")
                    self._members[own].discard(node)
                    self._members[host].add(node)

    def result(self) -> list[PlannedRegion]:
        found = []
        for number, region in sorted(self._regions.items()):
            members = tuple(sorted(self._members[number]))
            if members != region.members:  # Heirs are not put in another order for every new figure.
                ranked = _ranked(self._members[number], self._pooled)
                heirs = tuple(node for node in ranked if node != region.hub)[:HEIRS]
                region = msgspec.structs.replace(region, members=members, heirs=heirs)
            found.append(region)
        return found

    def _begin(self, hub: NodeId, members: set[NodeId], reason: str) -> None:
        number, self._next = self._next, self._next + 1
        self._regions[number] = PlannedRegion(number=number, hub=hub, members=(), reason=_clipped(reason))
        self._members[number] = members
        self.news.append(f"region {number} begins with {len(members)}, hub {hub[:8]}")

    def _ideal(self) -> tuple[Region, ...]:
        """How it would be if nothing stood."""
        if self._found is None:
            self._found = ideal_regions(self._pooled)
        return self._found

    def _host(self, found: Region) -> int | None:
        """The region that has the most of these, as it stands."""
        common = {number: len(members & {*found.members}) for number, members in self._members.items()}
        return max((n for n, count in common.items() if count), key=lambda n: (common[n], -n), default=None)

    def _is_nearer(self, node: NodeId, host: int, own: int) -> bool:
        if (label := self._pooled.machines[node].label) and label in self._led:
            return True
        there, here = (self._mean_s(node, self._members[number]) for number in (host, own))
        return there is not None and here is not None and there < MOVE_SHARE * here

    def _mean_s(self, node: NodeId, others: Collection[NodeId]) -> float | None:
        return mean_trip_s(node, others, self._pooled.rtt_s)


def ideal_regions(pooled: Pooled) -> tuple[Region, ...]:
    """By what owners say, and by round trips for those who say nothing; without anybody able there are none."""
    facts, able = pooled.facts, pooled.able
    if not able:
        return ()
    by_label: dict[str, set[NodeId]] = {}
    for node, machine in sorted(pooled.machines.items()):
        if machine.label:
            by_label.setdefault(machine.label, set()).add(node)
    said = {label: group for label, group in by_label.items() if group & able}
    rest = sorted({*facts} - set().union(*said.values()))
    measured = find_regions({node: facts[node] for node in rest}, pooled.rtt_s, able=able & {*rest})
    if said and not measured:  # Nobody else may be a hub: each goes to the nearest of those regions.
        for node in rest:
            said[_nearest(node, said, pooled.rtt_s)].add(node)
    named = tuple(
        make_region(tuple(sorted(group)), facts, f"in {label!r} by their owners' word", able)
        for label, group in said.items()
    )
    return tuple(sorted((*named, *measured), key=lambda region: region.members))


def _nearest(node: NodeId, groups: Mapping[str, Collection[NodeId]], rtt_s: RoundTrip) -> str:
    trips = {label: mean_trip_s(node, group, rtt_s) for label, group in groups.items()}
    return min(trips, key=lambda label: (trips[label] is None, trips[label] or 0.0, label))


def _ranked(nodes: Collection[NodeId], pooled: Pooled) -> list[NodeId]:
    """Those who may be hubs, the best first."""
    fit = [node for node in nodes if node in pooled.able]
    return sorted(fit, key=lambda node: (-hub_score(pooled.machines[node].facts), node))


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
