"""Real processes that do not wait for one another: each preset trains, loses a node, and ends as its log says."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.runlog.entries import Seal

from .fleet import TINY, Fleet
from .referee import check_log, end_run

STRATEGIES: dict[str, dict[str, Any]] = {
    "async": {
        "preset": "async",
        "schedule": {"steps": 4, "overlap": 2},
        "seal": {"min_interval_s": 0.3, "attest_every": 4},
    },
    "decoupled": {
        "preset": "decoupled",
        "schedule": {"steps": 4, "overlap": 2},
        "seal": {"grace_s": 0.2, "deadline_s": 4.0},
    },
    "gossip": {
        "preset": "gossip",
        "schedule": {"steps": 3},
        "seal": {"deadline_s": 4.0},
        "merge": {"kind": "pairs", "global_every": 3},
    },
    "streaming-diloco": {
        "preset": "streaming-diloco",
        "schedule": {"steps": 3, "overlap": 1, "fragments": 2},
        "seal": {"deadline_s": 4.0},
    },
}


IN_EVERY_SUITE = ("async", "gossip")
"""The others take the same ways through the processes, and differ in what is simulated anyway."""


def _case(preset: str) -> object:
    return pytest.param(preset, marks=[] if preset in IN_EVERY_SUITE else [pytest.mark.long])


@pytest.mark.parametrize("preset", [_case(preset) for preset in STRATEGIES])
def test_a_run_that_waits_for_nobody_survives_a_kill_and_replays(preset: str, fleet: Fleet) -> None:
    """The last one's uplink is slow: it comes late, and is killed in the middle of it."""
    membership = {**TINY["membership"], "min_nodes": 3}
    fleet.serve({**TINY, "strategy": STRATEGIES[preset], "membership": membership})
    for name in ("ada", "ben"):
        fleet.join(name)
    fleet.join("cleo", "--max-up", "20kB/s")
    for name in ("ada", "ben", "cleo"):
        fleet.contributes(name)

    fleet.nodes["cleo"].kill()
    position = fleet.length() - 1
    fleet.seals_after(position, count=4)
    fleet.join("cleo")
    fleet.contributes("cleo", after=fleet.length())

    fleet.seals_after(0, count=8)
    links = end_run(fleet)
    view = check_log(links)
    seals = [link.entry.body for link in links if isinstance(link.entry.body, Seal)]
    assert len(seals) >= 8 and all((seal.whole > 0) == (preset == "async") for seal in seals)
    assert view.totals.tokens > 0
