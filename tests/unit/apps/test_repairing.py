"""A coordinator's damaged store made whole: not under the one who works with it, and what it promised as a voter is
never taken to be nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runlog.small_log import COORDINATOR, NODES, OTHER_RUN, RUN, Clerk, small_recipe

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
PAGE = 1024
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


@pytest.fixture
def clerk() -> Clerk:
    """Of a run that one coordinator keeps, and nobody else."""
    clerk = Clerk()
    clerk.found()
    clerk.join(*NODES[:3])
    return clerk


def _stored(clerk: Clerk, folder: Path) -> Path:
    path = folder / "coordinator" / "store.sqlite"
    path.parent.mkdir()
    with contextlib.closing(SqlLogStore(f"sqlite:///{path}")) as store:
        for position, entry in enumerate(clerk.entries):
            store.append(RUN, position, entry)
    return path


def _member(entries: list[bytes], folder: Path) -> Path:
    """The home of one that has these entries too."""
    copy = FileLogStore(FileDisk(folder / "node" / "runs" / RUN), lambda point: None)
    for position, entry in enumerate(entries):
        copy.append(RUN, position, entry)
    return folder


def _rot_entries(path: Path, which: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE shoal_entries SET entry = CAST('rot' AS BLOB) WHERE {which}")


def _drop_entries(path: Path, which: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(f"DELETE FROM shoal_entries WHERE {which}")


def _rot_page(path: Path, clerk: Clerk) -> None:
    """The page of the table in which the last entry begins is none any more."""
    content = bytearray(path.read_bytes())
    content[content.index(clerk.entries[-1][:60]) // PAGE * PAGE] = 0
    path.write_bytes(content)


def _rot_header(path: Path, clerk: Clerk) -> None:
    path.write_bytes(bytes(100) + path.read_bytes()[100:])


def _rot_schema(path: Path, clerk: Clerk) -> None:
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE shoal_kept", b"CRE\xc1TE TABLE shoal_kept"))


ROTS: dict[str, Callable[[Path, Clerk], None]] = {
    "an entry": lambda path, clerk: _rot_entries(path, "position = 2"),
    "the last entry": lambda path, clerk: _rot_entries(path, "position = 3"),
    "no last entry": lambda path, clerk: _drop_entries(path, "position = 3"),
    "no entries": lambda path, clerk: _drop_entries(path, "true"),
    "all entries": lambda path, clerk: _rot_entries(path, "true"),
    "the page of the last entry": _rot_page,
    "the header": _rot_header,
    "the schema": _rot_schema,
}


@pytest.mark.parametrize("rot", ROTS.values(), ids=ROTS)
def test_a_store_that_would_lack_entries_does_not_take_the_damaged_ones_place(
    tmp_path: Path, clerk: Clerk, rot: Callable[[Path, Clerk], None]
) -> None:
    path = _stored(clerk, tmp_path)
    rot(path, clerk)
    damaged = path.read_bytes()

    told = _repair(path)
    assert not told["ok"] and "--from" in told["damaged"][0]["repair"]
    assert path.read_bytes() == damaged, "nodes have the entries after it: it must not go on without them"

    assert _repair(path, _member(clerk.entries, tmp_path / "member"))["ok"]
    with contextlib.closing(SqlLogStore(f"sqlite:///{path}", create=False)) as store:
        assert list(store.read(RUN)) == clerk.entries


def test_a_copy_that_ends_before_what_the_store_still_has_is_not_enough(tmp_path: Path, clerk: Clerk) -> None:
    path = _stored(clerk, tmp_path)
    _rot_entries(path, "position = 3")
    damaged = path.read_bytes()
    told = _repair(path, _member(clerk.entries[:3], tmp_path / "member"))
    assert not told["ok"] and "1 lost" in told["damaged"][0]["repair"]
    assert path.read_bytes() == damaged


def test_no_run_that_has_a_folder_is_left_out(tmp_path: Path, clerk: Clerk) -> None:
    path = _stored(clerk, tmp_path)
    (path.parent / "runs" / OTHER_RUN).mkdir(parents=True)
    _rot_header(path, clerk)
    damaged = path.read_bytes()
    told = _repair(path, _member(clerk.entries, tmp_path / "member"))
    assert not told["ok"] and OTHER_RUN[:12] in told["damaged"][0]["repair"]
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("column", ["run", "position"])
def test_a_rotten_index_costs_nothing(tmp_path: Path, clerk: Clerk, column: str) -> None:
    path = _stored(clerk, tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        (root,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_shoal_entries_1'"
        ).fetchone()
    content = bytearray(path.read_bytes())
    last = content.index(RUN.encode() + b"\3", (root - 1) * PAGE, root * PAGE)
    content[last + (len(RUN) if column == "position" else len(RUN) - 1)] = ord("9")
    path.write_bytes(content)
    told = _repair(path)
    assert told["ok"] and told["damaged"], told
    with contextlib.closing(SqlLogStore(f"sqlite:///{path}", create=False)) as store:
        assert store.runs() == [RUN] and list(store.read(RUN)) == clerk.entries


def test_a_voter_that_has_lost_its_whole_store_stays_silent(path: Path, tmp_path: Path) -> None:
    with contextlib.closing(SqlLogStore(f"sqlite:///{path}", create=False)) as store:
        entries = list(store.read(RUN))
    path.write_bytes(bytes(path.stat().st_size))
    (path.parent / "runs" / RUN).mkdir(parents=True)
    assert not _repair(path)["ok"] and not any(path.read_bytes()), "nothing says that it never promised"
    told = _repair(path, _member(entries, tmp_path / "member"))
    assert told["ok"] and FORGETFUL in told["damaged"][0]["repair"]
    with contextlib.closing(SqlLogStore(f"sqlite:///{path}", create=False)) as store:
        assert _answer(store, LATER) is None
