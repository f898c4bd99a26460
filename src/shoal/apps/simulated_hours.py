"""Who of a large fleet is near whom, what its regions train by, and when its people are awake.

In flow a fleet's lines; out flow regions, a recipe and each host's days. Invariant: pure; the same lines and seed give
the same regions and the same days everywhere.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from shoal.lab.links import Line, Network, Power, Step
from shoal.strategy.recipe import Recipe, parse_recipe

MOST_IN_REGION = 40
"""Hosts of one region of the file are cut into regions of this many, nearest first."""
ROUND_S = 3600.0
"""What a region's members train for, before each of its rounds is sealed."""
FAR_ROUND_S = 7200.0
"""What a region trains for, before its hub claims."""
WAKES_H, AWAKE_H = (9.0, 2.5), (11.0, 3.0)
"""When people switch their machines on, by their own clocks, and for how long: mean and deviation, in hours."""


def day_recipe(settings: Sequence[str]) -> Recipe:
    """What a day's regions train by. Raises SH-RECIPE-02 or -03."""
    values = {
        "name": "simulated day",
        "model": {"kind": "mlp", "width": 8, "layers": 1},
        "data": {"source": "digits"},
        "inner": {"kind": "sgd", "lr": 0.05, "batch_size": 8},
        "strategy": {
            "preset": "halos",
            "schedule": {"steps": 20_000, "seconds": FAR_ROUND_S, "overlap": 0},
            "seal": {"kind": "arrivals", "min_interval_s": 900.0, "adaptive": True, "attest_every": 1},
            "region": {
                "preset": "local-sgd",
                "schedule": {"steps": 400, "seconds": ROUND_S},
                "seal": {
                    "kind": "quorum",
                    "quorum": 0.75,
                    "grace_s": 300.0,
                    "deadline_s": 1.5 * ROUND_S,
                    "staleness": 1,
                },
                "merge": {"kind": "add-delta"},
            },
        },
        "budget": {"seconds": 1e8},
        "membership": {"lease_s": 700.0, "heartbeat_s": 300.0, "reconnect_s": 120.0},
        "storage": {"keep_bytes": 0, "snapshot_every": 4},
        "evaluation": {"every": 1000},
    }
    return parse_recipe(json.dumps(values), overrides=settings, environment={})


def regions_of(network: Network, most: int = MOST_IN_REGION) -> tuple[tuple[Line, ...], ...]:
    """Near hosts together: those that name the same region, by how far they are, in equal parts of at most so many."""
    by_name: dict[str, list[Line]] = defaultdict(list)
    for line in network.lines:
        by_name[line.region].append(line)
    found: list[tuple[Line, ...]] = []
    for _, lines in sorted(by_name.items()):
        near = sorted(lines, key=lambda line: (line.latency_s, line.name))
        parts = -(-len(near) // most)
        bounds = [len(near) * part // parts for part in range(parts + 1)]
        found += [tuple(near[start:stop]) for start, stop in itertools.pairwise(bounds)]
    return tuple(found)


def waking(line: Line, zone_h: float, seed: int) -> Iterator[Step]:
    """When somebody switches this host on and off, day after day: at human hours of its time zone."""
    rng = random.Random(f"{seed}/{line.name}/day")  # noqa: S311 (a schedule, not a secret)
    wakes = (24 * day - zone_h + rng.gauss(*WAKES_H) for day in itertools.count(-1))
    for on_h, next_h in itertools.pairwise(wakes):
        off_h = min(on_h + max(2.0, rng.gauss(*AWAKE_H)), next_h - 1)
        for at_h, on in ((on_h, True), (max(on_h, off_h), False)):
            what, change = f"{'on' if on else 'off'} {line.name}", Power((line.name,), on)
            yield Step(at_s=at_h * 3600, what=what, change=change)


def in_order(sources: Sequence[Iterator[Any]]) -> Iterator[Any]:
    """Steps in the order of time; of several sources, each in order itself."""
    return heapq.merge(*sources, key=lambda item: item.at_s if isinstance(item, Step) else item[0].at_s)
