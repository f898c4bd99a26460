"""One suite for every log store: files, SQLite, and a real PostgreSQL."""

from __future__ import annotations

import json
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, text

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.base.logstore import LogStore
from shoal.runlog.files import FileLogStore
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.sqlstore import SqlLogStore

from .postgres import running_postgres

RUN, OTHER = RunId("a" * 32), RunId("b" * 32)
SQL_KINDS = ("sqlite", "postgres")


@dataclass(frozen=True)
class Place:
    """Somewhere a store lies; every `open()` is another process's view of it."""

    kind: str
    open: Callable[[], LogStore]
    url: str = ""


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(params=["files", *SQL_KINDS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return _place(request, tmp_path, request.param)


@pytest.fixture(params=SQL_KINDS)
def sql_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return _place(request, tmp_path, request.param)


def _place(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> Place:
    if kind == "files":
        return Place(kind, lambda: FileLogStore(FileDisk(tmp_path), lambda _: None))
    url = f"sqlite:///{tmp_path}/deeper/store.sqlite"
    if kind == "postgres":
        url = request.getfixturevalue("postgres")
        _empty(url)

    def opened() -> LogStore:
        store = SqlLogStore(url)
        request.addfinalizer(store.close)
        return store

    return Place(kind, opened, url)


def _empty(url: str) -> None:
    _execute(url, "DROP TABLE IF EXISTS shoal_entries, shoal_kept")


@pytest.fixture
def store(place: Place) -> LogStore:
    return place.open()


def test_a_run_nobody_wrote_is_empty(store: LogStore) -> None:
    assert store.runs() == []
    assert store.length(RUN) == 0
    assert list(store.read(RUN)) == []
    assert store.kept(RUN, "") == {}
    store.drop(RUN, "nothing")


def test_entries_come_back_in_order(store: LogStore) -> None:
    entries = [bytes([n]) * (n + 1) for n in range(150)]
    for position, entry in enumerate(entries):
        store.append(RUN, position, entry)
    assert store.length(RUN) == 150
    assert list(store.read(RUN)) == entries
    assert list(store.read(RUN, 60, 140)) == entries[60:140]
    assert list(store.read(RUN, 149)) == entries[149:]
    assert list(store.read(RUN, 10, 10)) == []
    assert list(store.read(RUN, 140, 900)) == entries[140:]
    assert list(store.read(RUN, 900)) == []


def test_runs_are_apart_and_sorted(store: LogStore) -> None:
    store.append(OTHER, 0, b"other")
    store.append(RUN, 0, b"one")
    store.append(RUN, 1, b"two")
    assert store.runs() == [RUN, OTHER]
    assert list(store.read(OTHER)) == [b"other"]
    assert store.length(RUN) == 2


def test_a_run_with_kept_values_only_has_no_log(store: LogStore) -> None:
    store.keep(RUN, "token.0", b"secret")
    assert store.runs() == []


@pytest.mark.parametrize("position", [0, 1, 3, 17])
def test_only_the_next_position_is_taken(store: LogStore, position: int) -> None:
    store.append(RUN, 0, b"zero")
    store.append(RUN, 1, b"one")
    with pytest.raises(ShoalError) as caught:
        store.append(RUN, position, b"wrong")
    assert caught.value.code == "SH-LOG-03"
    assert list(store.read(RUN)) == [b"zero", b"one"]
    store.append(RUN, 2, b"two")


def test_every_byte_and_a_mebibyte_survive(place: Place) -> None:
    store = place.open()
    large, odd = bytes(range(256)) * 4096, b"\0'\";--%_\xff"
    for position, entry in enumerate([large, odd, b"", large[::-1]]):
        store.append(RUN, position, entry)
    store.keep(RUN, "large", large)
    again = place.open()
    assert list(again.read(RUN)) == [large, odd, b"", large[::-1]]
    assert again.kept(RUN, "large") == {"large": large}


def test_kept_values_by_prefix_in_key_order(store: LogStore) -> None:
    for key in ("token.1", "claim.b.2", "claim.a.10", "claim.B.1", "claimXa", "Claim.z", "claim_x"):
        store.keep(RUN, key, key.encode())
    store.keep(OTHER, "claim.other", b"")
    assert list(store.kept(RUN, "claim.")) == ["claim.B.1", "claim.a.10", "claim.b.2"]
    assert store.kept(RUN, "claim_") == {"claim_x": b"claim_x"}
    assert len(store.kept(RUN, "")) == 7


def test_a_kept_value_is_replaced_and_dropped(store: LogStore) -> None:
    store.keep(RUN, "claim.a", b"old")
    store.keep(RUN, "claim.a", b"new")
    assert store.kept(RUN, "claim.") == {"claim.a": b"new"}
    store.drop(RUN, "claim.a")
    store.drop(RUN, "claim.a")
    assert store.kept(RUN, "") == {}


def test_everything_is_there_after_reopening(place: Place) -> None:
    first = place.open()
    first.append(RUN, 0, b"zero")
    first.keep(RUN, "claim.a", b"kept")
    second = place.open()
    assert second.runs() == [RUN]
    assert second.length(RUN) == 1
    second.append(RUN, 1, b"one")
    third = place.open()
    assert list(third.read(RUN)) == [b"zero", b"one"]
    assert third.kept(RUN, "") == {"claim.a": b"kept"}


def test_a_reader_in_the_middle_does_not_hold_up_the_writer(store: LogStore) -> None:
    for position in range(200):
        store.append(RUN, position, b"%d" % position)
    reading = store.read(RUN)
    first = next(reading)
    store.append(RUN, 200, b"200")
    assert [first, *reading][:200] == [b"%d" % n for n in range(200)]


def test_threads_on_runs_of_their_own(store: LogStore) -> None:
    runs = [RunId(f"{n:032x}") for n in range(4)]

    def write(run: RunId) -> None:
        for position in range(25):
            store.append(run, position, f"{run} {position}".encode())
            store.keep(run, "last", b"%d" % position)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, runs))
    assert store.runs() == runs
    for run in runs:
        assert list(store.read(run)) == [f"{run} {n}".encode() for n in range(25)]
        assert store.kept(run, "") == {"last": b"24"}


def test_of_two_writers_who_saw_one_head_exactly_one_wins(sql_place: Place) -> None:
    writers = [sql_place.open(), sql_place.open()]
    for position in range(20):
        together = threading.Barrier(2)

        def attempt(
            number: int, position: int = position, together: threading.Barrier = together
        ) -> str | None:
            together.wait()
            try:
                writers[number].append(RUN, position, b"by %d" % number)
            except ShoalError as error:
                return error.code
            return None

        with ThreadPoolExecutor(2) as pool:
            outcomes = list(pool.map(attempt, [0, 1]))
        assert sorted(outcomes, key=str) == [None, "SH-LOG-03"]
        assert list(writers[0].read(RUN, position)) == [b"by %d" % outcomes.index(None)]


_WRITER = """
import sys
from shoal.base.errors import ShoalError
from shoal.worlds.real.sqlstore import SqlLogStore

store, won = SqlLogStore(sys.argv[1]), []
print("up", flush=True)
sys.stdin.readline()
for position in range(30):
    try:
        store.append("a" * 32, position, sys.argv[2].encode())
        won.append(position)
    except ShoalError as error:
        assert error.code == "SH-LOG-03", error
print(won)
"""


def test_two_processes_share_the_positions(sql_place: Place) -> None:
    store = sql_place.open()
    names = ["one", "two"]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, sql_place.url, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "up\n"
    said = [writer.communicate("go\n", timeout=60)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    won = {name: set(json.loads(line)) for name, line in zip(names, said, strict=True)}
    assert won["one"] | won["two"] == set(range(30))
    assert won["one"] & won["two"] == set()
    entries = list(store.read(RUN))
    assert [entry.decode() for entry in entries] == ["one" if n in won["one"] else "two" for n in range(30)]


# --- what only SQL stores have ----------------------------------------------------------------------------


def test_a_healthy_store_has_no_findings(sql_place: Place) -> None:
    store = sql_place.open()
    assert isinstance(store, SqlLogStore)
    store.append(RUN, 0, b"zero")
    assert store.integrity() == []


def _execute(url: str, command: str, **values: object) -> None:
    """By somebody who goes to the database itself."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text(command), values)
    engine.dispose()


@pytest.mark.parametrize(("gone", "named"), [("= 3", 3), (">= 130", 130), (">= 0", 0), ("IN (60, 139)", 60)])
def test_a_missing_entry_is_named(sql_place: Place, gone: str, named: int) -> None:
    store = sql_place.open()
    for position in range(140):
        store.append(RUN, position, b"entry")
    _execute(sql_place.url, f"DELETE FROM shoal_entries WHERE position {gone}")
    assert store.runs() == [RUN]
    with pytest.raises(ShoalError, match=f"entry {named} of run") as caught:
        list(store.read(RUN))
    assert caught.value.code == "SH-LOG-01"


def test_no_entry_is_put_where_others_are_missing(sql_place: Place) -> None:
    store = sql_place.open()
    for position in range(3):
        store.append(RUN, position, b"entry")
    _execute(sql_place.url, "DELETE FROM shoal_entries WHERE position = 2")
    for call in (lambda: store.append(RUN, 2, b"another"), lambda: store.length(RUN)):
        with pytest.raises(ShoalError, match="entry 2 of run") as caught:
            call()
        assert caught.value.code == "SH-LOG-01"


def test_a_log_that_an_older_version_wrote_is_as_long_as_it_is(sql_place: Place) -> None:
    store = sql_place.open()
    store.append(RUN, 0, b"zero")
    _execute(sql_place.url, "DELETE FROM shoal_kept")
    store.append(RUN, 1, b"one")
    assert list(store.read(RUN)) == [b"zero", b"one"]
    _execute(sql_place.url, "DELETE FROM shoal_entries WHERE position = 1")
    with pytest.raises(ShoalError, match="entry 1 of run"):
        list(store.read(RUN))


def test_an_altered_kept_value_is_named(sql_place: Place) -> None:
    store = sql_place.open()
    store.keep(RUN, "claim.a", b"promise")
    _execute(sql_place.url, "UPDATE shoal_kept SET value = :v", v=b"promisf")
    with pytest.raises(ShoalError, match=r"claim\.a") as caught:
        store.kept(RUN, "claim.")
    assert caught.value.code == "SH-LOG-01"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://someone:hunter2@127.0.0.1:1/nothing",
        "postgresql://someone@127.0.0.1:1/nothing?password=hunter2",
        "postgresql://someone:hunter2@127.0.0.1:port/nothing",
        "post-gres://someone:hunter2@127.0.0.1:1/nothing",
        "my-sql://someone:hunter2@127.0.0.1:1/nothing",
    ],
)
def test_the_password_is_in_no_message(url: str) -> None:
    with pytest.raises(ShoalError) as caught:
        SqlLogStore(url)
    assert caught.value.code == "SH-LOG-04"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://root@localhost/x", "://", "sqlite://"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ShoalError) as caught:
        SqlLogStore(url)
    assert caught.value.code == "SH-LOG-04"


# --- the SQLite file --------------------------------------------------------------------------------------


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    """A store with some entries, closed."""
    file = tmp_path / "store.sqlite"
    with closing(SqlLogStore(str(file))) as store:
        for position in range(40):
            store.append(RUN, position, b"entry %02d " % position * 40)
        store.keep(RUN, "claim.a", b"promise")
    return file


@pytest.mark.parametrize("url", ["postgres:shoal", "sqlite:store"])
def test_an_address_without_its_slashes_is_no_files_name(url: str) -> None:
    with pytest.raises(ShoalError) as caught:
        SqlLogStore(url)
    assert caught.value.code == "SH-LOG-04"


def test_an_entry_whose_run_is_not_text_any_more(sqlite_file: Path) -> None:
    with closing(sqlite3.connect(sqlite_file)) as connection, connection:
        connection.execute("UPDATE shoal_entries SET run = CAST(run AS BLOB) WHERE position = 7")
    with closing(SqlLogStore(str(sqlite_file))) as store, pytest.raises(ShoalError) as caught:
        store.runs()
    assert caught.value.code == "SH-LOG-01"


def test_the_one_file_is_everything(sqlite_file: Path) -> None:
    assert [path.name for path in sqlite_file.parent.iterdir()] == ["store.sqlite"]


def test_no_file_where_one_must_be(tmp_path: Path) -> None:
    with pytest.raises(ShoalError) as caught:
        SqlLogStore(str(tmp_path / "none.sqlite"), create=False)
    assert caught.value.code == "SH-LOG-04"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with closing(SqlLogStore(str(path))) as store:
        store.append(RUN, 0, b"small")
        before, room = resource.getrlimit(resource.RLIMIT_FSIZE), path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            with pytest.raises(ShoalError) as caught:
                store.append(RUN, 1, b"large" * 20_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert caught.value.code == "SH-DISK-01"
        store.append(RUN, 1, b"large" * 20_000)
        assert store.length(RUN) == 2
    assert [found.name for found in tmp_path.iterdir()] == ["store.sqlite"]


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    def fill(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 40")

    event.listen(Engine, "connect", fill)
    try:
        with closing(SqlLogStore(str(tmp_path / "store.sqlite"))) as store:
            store.append(RUN, 0, b"small")
            with pytest.raises(ShoalError) as caught:
                store.append(RUN, 1, b"large" * 20_000)
            assert caught.value.code == "SH-DISK-01"
            store.append(RUN, 1, b"small again")
            assert list(store.read(RUN)) == [b"small", b"small again"]
    finally:
        event.remove(Engine, "connect", fill)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    file.write_bytes(b"certainly not a database " * 200)
    with pytest.raises(ShoalError) as caught:
        SqlLogStore(str(file))
    assert caught.value.code == "SH-LOG-04"


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(ShoalError) as caught:
        SqlLogStore(str(tmp_path))
    assert caught.value.code == "SH-LOG-04"


def test_a_flipped_byte_is_an_error_or_an_altered_entry_never_a_crash(sqlite_file: Path) -> None:
    """Whichever byte it is: opening or reading fails with a code, or hands out what is on disk, to be verified
    by its reader; nothing else ever comes out. A byte of an entry never goes unnoticed."""
    good = sqlite_file.read_bytes()
    with closing(SqlLogStore(str(sqlite_file))) as store:
        entries = list(store.read(RUN))
    inside = {at + n for entry in entries for at in [good.find(entry)] if at >= 0 for n in range(len(entry))}
    assert inside
    for where in range(0, len(good), 211):
        damaged = bytearray(good)
        damaged[where] ^= 0xFF
        sqlite_file.write_bytes(damaged)
        assert _notices(sqlite_file, entries) or where not in inside


def _notices(sqlite_file: Path, entries: list[bytes]) -> bool:
    try:
        with closing(SqlLogStore(str(sqlite_file), create=False)) as store:
            findings, found = store.integrity(), list(store.read(RUN))
            store.kept(RUN, "")
    except ShoalError as error:
        assert error.code in {"SH-LOG-01", "SH-LOG-04"}
        assert error.next_step
        return True
    return bool(findings) or found != entries
