"""A rolling upgrade with real processes: an old node stays in the run while the coordinator is exchanged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.wire.versions import PROTOCOL

from .fleet import Fleet, tiny
from .referee import check_log, stored_log

OLD = f"{PROTOCOL - 1}-{PROTOCOL - 1}"


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("upgrade")) as made:
        yield made


def test_a_coordinator_is_upgraded_in_mid_run(fleet: Fleet) -> None:
    fleet.place += ["--wire-versions", OLD]
    old = fleet.serve(tiny(membership={"min_nodes": 2}))
    fleet.join("ada", "--wire-versions", OLD)
    fleet.join("ben")
    for name in ("ada", "ben"):
        fleet.contributes(name)

    old.kill()
    fleet.place = fleet.place[:-2]
    fleet.serve()
    length = fleet.length()
    for name in ("ada", "ben"):
        fleet.contributes(name, after=length, within_s=60)
        assert fleet.nodes[name].alive, "nobody had to be started again"

    refused = fleet.join("eve", "--wire-versions", "9-9")
    assert refused.ended(60) == 2 and "--wire-versions" in refused.err.read_text()
    assert fleet.coordinator is not None
    fleet.coordinator.kill()
    check_log(stored_log(fleet))
