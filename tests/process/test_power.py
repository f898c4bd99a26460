"""Everything killed at once, as by a power cut, and started again: the run goes on from its last sealed round."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .fleet import Fleet, tiny
from .referee import check_copies, check_log, stored_log

NAMES = ("ada", "ben")


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("power")) as made:
        yield made


def test_the_whole_cluster_off_and_on(fleet: Fleet) -> None:
    fleet.serve(tiny(membership={"min_nodes": 2}))
    for name in NAMES:
        fleet.join(name)
    for name in NAMES:
        fleet.contributes(name)

    assert fleet.coordinator is not None
    for child in (fleet.coordinator, *fleet.nodes.values()):
        child.kill()
    before = stored_log(fleet)
    attested = check_log(before).attested
    fleet.serve()
    for name in NAMES:
        fleet.join(name)
    for name in NAMES:
        fleet.contributes(name, after=len(before), within_s=60)

    for child in (fleet.coordinator, *fleet.nodes.values()):
        child.kill()
    links = stored_log(fleet)
    view = check_log(links)  # All who attest a state attest the same: those from before the cut, too.
    assert [link.hash for link in links[: len(before)]] == [link.hash for link in before]
    assert all(view.attested[at].items() >= words.items() for at, words in attested.items())
    check_copies(fleet, links)
