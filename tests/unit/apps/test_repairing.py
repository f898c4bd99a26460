"""A coordinator's damaged store made whole: not under the one who works with it, and what it promised as a voter is
never taken to be nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from runlog.small_log import COORDINATOR, NODES, RUN, Clerk, small_recipe

from shoal.apps.ckpt_repairing import FORGETFUL, Repairing, repair_store
from shoal.apps.ckpt_verifying import verify_home
from shoal.runlog.files import FileLogStore
from shoal.runlog.voter import Voter
from shoal.wire.ballots import AskVote, Ballot, Vote
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.locks import held
from shoal.worlds.real.sqlstore import SqlLogStore

ASK = AskVote(run=RUN, ballot=Ballot(9, "two"), length=1)
LATER = AskVote(run=RUN, ballot=Ballot(10, "two"), length=1)
LOST = {
    "the value was altered": "UPDATE shoal_kept SET value = CAST('rot' AS BLOB)",
    "the row is gone": "DELETE FROM shoal_kept",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The store of a coordinator that has voted in a run which a majority keeps."""
    clerk, path = Clerk(), tmp_path / "coordinator" / "store.sqlite"
    path.parent.mkdir()
    clerk.found(small_recipe(membership={"coordinators": ["one:1", "two:1"]}))
    with contextlib.closing(SqlLogStore(f"sqlite:///{path}")) as store:
        store.append(RUN, 0, clerk.entries[0])
        assert isinstance(_answer(store, ASK), Vote)
    return path


def _answer(store: SqlLogStore, ask: AskVote) -> object:
    return Voter(store, RUN, lambda: COORDINATOR.public).answer(ask)


@pytest.mark.parametrize("command", LOST.values(), ids=LOST)
def test_a_voter_that_has_forgotten_its_promises_stays_silent(path: Path, command: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(command)
    told = repair_store(Repairing(path.parent, []), path)
    assert told.startswith("repaired") and FORGETFUL in told
    with contextlib.closing(SqlLogStore(f"sqlite:///{path}", create=False)) as store:
        assert _answer(store, LATER) is None


def test_a_voter_whose_promises_are_whole_keeps_them(path: Path) -> None:
    told = repair_store(Repairing(path.parent, []), path)
    assert told.startswith("repaired") and FORGETFUL not in told
    with contextlib.closing(SqlLogStore(f"sqlite:///{path}", create=False)) as store:
        answer = _answer(store, ASK)
        assert isinstance(answer, Vote) and answer.promised == ASK.ballot


def test_a_store_that_somebody_works_with_is_left_as_it_is(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(LOST["the value was altered"])
    with held(path.parent, shared=True) as serving:
        assert serving
        told = _repair(path)
        assert not told["ok"] and "stop the process" in told["damaged"][0]["repair"]
        assert not path.with_name("store.damaged").exists()
    assert _repair(path)["ok"]
    assert path.with_name("store.damaged").exists()


def _repair(path: Path, *sources: Path) -> dict[str, Any]:
    return verify_home(path.parent.parent, None, node=False, repair=True, sources=sources)


def test_a_store_that_would_lack_entries_does_not_take_the_damaged_ones_place(tmp_path: Path) -> None:
    clerk, path = Clerk(), tmp_path / "coordinator" / "store.sqlite"
    path.parent.mkdir()
    clerk.found()
    clerk.join(*NODES[:3])
    with contextlib.closing(SqlLogStore(f"sqlite:///{path}")) as store:
        for position, entry in enumerate(clerk.entries):
            store.append(RUN, position, entry)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE shoal_entries SET entry = CAST('rot' AS BLOB) WHERE position = 2")
    damaged = path.read_bytes()

    told = _repair(path)
    assert not told["ok"] and "--from" in told["damaged"][0]["repair"]
    assert path.read_bytes() == damaged, "nodes have the entries after it: it must not go on without them"

    member = tmp_path / "member"
    copy = FileLogStore(FileDisk(member / "node" / "runs" / RUN), lambda point: None)
    for position, entry in enumerate(clerk.entries):
        copy.append(RUN, position, entry)
    assert _repair(path, member)["ok"]
    with contextlib.closing(SqlLogStore(f"sqlite:///{path}", create=False)) as store:
        assert list(store.read(RUN)) == clerk.entries
