"""Real processes that fold for one another: a folder is killed with its word on its lips, and the log replays."""

from __future__ import annotations

from typing import Any

from shoal.runlog.entries import Digests

from .fleet import TINY, Fleet
from .referee import check_log, end_run

STRATEGY: dict[str, Any] = {
    "preset": "local-sgd",
    "schedule": {"steps": 2},
    "codec": {"kind": "int8", "error_feedback": True},
    "seal": {"kind": "all-or-deadline", "deadline_s": 4.0},
    "digest": {"kind": "two-bit", "folders": 2, "shards": 8, "when": "always", "deadline_s": 4.0},
}


def test_folders_fold_for_all_and_one_is_killed_before_its_word(fleet: Fleet) -> None:
    membership = {**TINY["membership"], "min_nodes": 3}
    fleet.serve({**TINY, "strategy": STRATEGY, "membership": membership})
    for name in ("ada", "ben"):
        fleet.join(name)
    fleet.join("cleo", failpoint="node.before-folding:3:KILL")
    fleet.nodes["cleo"].killed_itself(60.0)
    position = fleet.length() - 1
    fleet.seals_after(position, count=2)
    fleet.join("cleo")
    fleet.contributes("cleo", after=fleet.length())
    fleet.seals_after(fleet.length(), count=2)

    links = end_run(fleet)
    view = check_log(links)
    digests = [link.entry.body for link in links if isinstance(link.entry.body, Digests)]
    assert len(digests) == sum(bool(step.shards) for step in view.path) == len(view.path) >= 6
    assert any(step.folded_by_all for step in view.path), "one of two is not enough"
    whole = [step for step in view.path if step.adopted and not step.folded_by_all]
    assert len(whole) >= 4 and any(shard.since for step in whole for shard in step.shards)
    kinds = {word.how for step in whole for word in view.attested.get(step.position, {}).values()}
    assert kinds == {"adopted"}
