"""A whole run whose log lies in PostgreSQL: the coordinator is killed in the middle, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.postgres import running_postgres

from .fleet import Fleet, tiny
from .referee import check_settled, end_run, kept_claims, stored_log

NAMES = ("ada", "ben")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_postgres() as url, Fleet(tmp_path_factory.mktemp("postgres"), store=url) as made:
        yield made


def test_a_run_on_postgres_outlives_its_coordinators_death(fleet: Fleet) -> None:
    fleet.serve(tiny(membership={"min_nodes": 2}))
    for name in NAMES:
        fleet.join(name)
    for name in NAMES:
        fleet.contributes(name)

    assert fleet.coordinator is not None
    fleet.coordinator.kill()
    promised, known = kept_claims(fleet), [link.hash for link in stored_log(fleet)]
    assert not (fleet.home / "coordinator" / "store.sqlite").exists(), "the log lies in the database alone"

    fleet.serve()
    for name in NAMES:
        assert fleet.nodes[name].alive, fleet.logs()
        fleet.contributes(name, after=len(known))

    links = end_run(fleet)
    assert [link.hash for link in links[: len(known)]] == known
    check_settled(links, promised)
    assert {link.entry.term for link in links} > {1}
