"""Who may write a shared store: the same on SQLite and a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.base.lead import Candidate
from shoal.worlds.real.sqlstore import SqlLogStore

from .postgres import running_postgres

RUN = RunId("a" * 32)
ADA, BEN = Candidate("ada", "127.0.0.1:1", "127.0.0.1:2"), Candidate("ben", "127.0.0.1:3", "127.0.0.1:4")
LONG_S, GONE_S = 3600.0, 0.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.sqlite"
    found: str = request.getfixturevalue("postgres")
    with closing(SqlLogStore(found)) as store, store._beginning() as connection:
        for table in ("shoal_leads", "shoal_candidates", "shoal_entries", "shoal_kept"):
            connection.exec_driver_sql(f"DELETE FROM {table}")
    return found


def test_one_leads_and_the_other_knows_where(url: str) -> None:
    with closing(SqlLogStore(url)) as one, closing(SqlLogStore(url)) as two:
        assert one.stand(ADA, LONG_S).leads
        standing = two.stand(BEN, LONG_S)
        assert not standing.leads and standing.leader == ADA and standing.others == (ADA,)
        assert one.stand(ADA, LONG_S).others == (BEN,)
        one.append(RUN, 0, b"entry")


def test_a_lapsed_lead_is_taken_and_the_old_leader_writes_nothing_more(url: str) -> None:
    with closing(SqlLogStore(url)) as one, closing(SqlLogStore(url)) as two:
        assert one.stand(ADA, GONE_S).leads
        one.keep(RUN, "claim.1", b"kept")
        assert two.stand(BEN, LONG_S).leads
        for write in (
            lambda: one.append(RUN, 0, b"late"),
            lambda: one.keep(RUN, "claim.2", b"late"),
            lambda: one.drop(RUN, "claim.1"),
            lambda: one.stand(ADA, LONG_S),
        ):
            with pytest.raises(ShoalError) as caught:
                write()
            assert caught.value.code == "SH-LEAD-01"
        assert two.kept(RUN, "claim") == {"claim.1": b"kept"} and two.length(RUN) == 0
        two.append(RUN, 0, b"entry")


def test_the_same_home_does_not_wait_for_its_own_lease(url: str) -> None:
    with closing(SqlLogStore(url)) as before, closing(SqlLogStore(url)) as after:
        assert before.stand(ADA, LONG_S).leads and after.stand(ADA, LONG_S).leads
        with pytest.raises(ShoalError):
            before.append(RUN, 0, b"late")
        after.append(RUN, 0, b"entry")


def test_of_many_who_ask_at_once_one_leads(url: str) -> None:
    stores = [SqlLogStore(url) for _ in range(8)]
    leads: list[bool] = []

    def ask(number: int) -> None:
        leads.append(stores[number].stand(Candidate(f"c{number}"), LONG_S).leads)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert sorted(leads) == [False] * 7 + [True]


def test_a_store_that_nobody_leads_takes_writes(url: str) -> None:
    with closing(SqlLogStore(url)) as store:
        store.append(RUN, 0, b"entry")
        assert store.length(RUN) == 1
