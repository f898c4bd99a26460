"""A log store of SQL rows: SQLite in one file by default, PostgreSQL by URL.

In flow encoded entries and small values; out flow the same. Invariant: a row is committed and synced before a
call returns; `append` looks at the log's length and inserts under the primary key (run, position) in one
transaction, so that of two writers who saw the same head exactly one succeeds. It notes the new length beside the
entries: a chain of hashes cannot tell that its end is gone.

SQLite keeps a rollback journal, not a write-ahead log: at rest the one file is the whole truth, so a copy of
it is a backup, and a byte flipped in it is met by whoever reads.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import blake3
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.base.lead import Candidate, Standing
from shoal.worlds.real import sqllead
from shoal.worlds.real.sqlfailures import damaged, explain

BUSY_S = 15
PAGE_ENTRIES = 64
LENGTH = "entries"
"""Among the kept values, the store's own note of how many entries a log has. Logs of older versions get theirs with the
next entry."""
_SECRET = re.compile(r"(://[^:@/]*:).*@")
"""The password in an address that cannot be taken apart."""
_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}

_tables = MetaData()
_entries = Table(
    "shoal_entries",
    _tables,
    Column("run", String, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("entry", LargeBinary, nullable=False),
)
_kept = Table(
    "shoal_kept",
    _tables,
    Column("run", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    # Entries prove themselves by the chain; these have nothing but this.
    Column("checksum", LargeBinary, nullable=False),
)


class SqlLogStore:
    """Implements `base.lead.SharedStore`; safe from any thread, and from several processes at once.

    `url` is `sqlite:///PATH`, a plain path to an SQLite file, or `postgresql://USER@HOST/DATABASE`. Raises
    SH-LOG-04 if it cannot be opened. With `create=False` the store must be there already.
    """

    def __init__(self, url: str, *, create: bool = True) -> None:
        self._url = _parse(url)
        self._epoch = 0
        """Of the lead that this store has; 0 while it has never asked for it."""
        self.name = _show(self._url)
        if not create and self._file is not None and not self._file.exists():
            raise ShoalError(
                "SH-LOG-04",
                f"there is no log store at {self._file}",
                "check --home, or --store, and its path",
            )
        with explain(self.name, opening=True):
            self._engine = _engine(self._url)
            self._check_tables(create)

    @property
    def _file(self) -> Path | None:
        sqlite = self._url.get_backend_name() == "sqlite"
        return Path(self._url.database) if sqlite and self._url.database else None

    def _check_tables(self, create: bool) -> None:
        if create:
            with self._writing() as connection:
                _tables.create_all(connection)
                sqllead.tables.create_all(connection)
        else:  # Whoever only looks takes no lock that a writer would wait for.
            with self._engine.connect() as connection:
                self._length(connection, RunId(""))

    def close(self) -> None:
        """Give back every connection. The store may be used again."""
        self._engine.dispose()

    # --- the log -----------------------------------------------------------------------------------------

    def runs(self) -> list[RunId]:
        """As in `LogStore`. Raises SH-LOG-01 where a row does not say any more whose it is."""
        with explain(self.name), self._engine.connect() as connection:
            # Sorted here: databases order text by their own rules.
            found = set(connection.execute(select(_entries.c.run).distinct()).scalars())
            found.update(connection.execute(select(_kept.c.run).where(_kept.c.key == LENGTH)).scalars())
        if not all(isinstance(run, str) for run in found):
            raise damaged(self.name, "an entry's run is not text any more")
        return sorted(RunId(run) for run in found)

    def append(self, run: RunId, position: int, entry: bytes) -> None:
        try:
            with explain(self.name), self._writing() as connection:
                length = self._length(connection, run)
                if position != length:
                    raise _not_the_head(run, position, f"a log of {length} entries")
                row = {"run": run, "position": position, "entry": entry}
                connection.execute(insert(_entries).values(row))
                _keep(connection, run, LENGTH, str(position + 1).encode())
        except IntegrityError:
            raise _not_the_head(run, position, "a log in which another writer was faster") from None

    def length(self, run: RunId) -> int:
        with explain(self.name), self._engine.connect() as connection:
            return self._length(connection, run)

    def _length(self, connection: Connection, run: RunId) -> int:
        noted = self._noted(connection, run)
        found = select(func.max(_entries.c.position)).where(_entries.c.run == run)
        last = connection.execute(found).scalar()
        length = 0 if last is None else int(last) + 1
        if length < noted:
            raise self._missing(run, length)
        return length

    def _noted(self, connection: Connection, run: RunId) -> int:
        """How many entries there must be at least. To be asked before one looks: others may append meanwhile."""
        return int(self._kept(connection, run, _kept.c.key == LENGTH).get(LENGTH, b"0"))

    def _missing(self, run: RunId, position: int) -> ShoalError:
        return damaged(self.name, f"entry {position} of run {run} is missing")

    def read(self, run: RunId, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """As in `LogStore`. Raises SH-LOG-01 where an entry is missing or its row cannot be read."""
        position = max(0, start)
        # By pages, each in a transaction of its own: a reader who dawdles must not hold up the writer.
        while stop is None or position < stop:
            count = PAGE_ENTRIES if stop is None else min(PAGE_ENTRIES, stop - position)
            noted, rows = self._page(run, position, count)
            end = position + count
            for found, entry in rows:
                if found != position:
                    raise self._missing(run, position)
                # In a damaged file a column may come back as anything.
                if not isinstance(entry, bytes):
                    raise damaged(self.name, f"entry {position} of run {run} is not bytes any more")
                yield entry
                position += 1
            if position < min(end, noted):
                raise self._missing(run, position)
            if position < end:
                return

    def _page(self, run: RunId, start: int, count: int) -> tuple[int, Sequence[Any]]:
        """How many entries there must be in all, and these, as they are stored."""
        columns = select(_entries.c.position, _entries.c.entry)
        after = columns.where(_entries.c.run == run, _entries.c.position >= start)
        with explain(self.name), self._engine.connect() as connection:
            noted = self._noted(connection, run)
            return noted, connection.execute(after.order_by(_entries.c.position).limit(count)).all()

    # --- kept values -------------------------------------------------------------------------------------

    def keep(self, run: RunId, key: str, value: bytes) -> None:
        with explain(self.name), self._writing() as connection:
            _keep(connection, run, key, value)

    def kept(self, run: RunId, prefix: str) -> dict[str, bytes]:
        """As in `LogStore`. Raises SH-LOG-01 for a value that is not what was kept."""
        # Not LIKE: it has wildcards, and SQLite's does not tell capitals apart.
        begins = func.substr(_kept.c.key, 1, len(prefix)) == prefix
        with explain(self.name), self._engine.connect() as connection:
            return self._kept(connection, run, begins & (_kept.c.key != LENGTH))

    def _kept(self, connection: Connection, run: RunId, which: ColumnElement[bool]) -> dict[str, bytes]:
        columns = select(_kept.c.key, _kept.c.value, _kept.c.checksum)
        rows = connection.execute(columns.where(_kept.c.run == run, which)).all()
        for key, value, checksum in rows:
            if not isinstance(value, bytes) or value_checksum(run, key, value) != checksum:
                raise damaged(self.name, f"the value {key} kept for run {run} was altered")
        return dict(sorted((key, value) for key, value, _ in rows))

    def drop(self, run: RunId, key: str) -> None:
        with explain(self.name), self._writing() as connection:
            connection.execute(delete(_kept).where(_kept.c.run == run, _kept.c.key == key))

    # --- health ------------------------------------------------------------------------------------------

    def integrity(self) -> list[str]:
        """What the database itself finds wrong with its file, one line each; PostgreSQL sees to its own."""
        if self._file is None:
            return []
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(text("PRAGMA integrity_check")).scalars().all()
        except (SQLAlchemyError, UnicodeDecodeError) as error:
            return [str(getattr(error, "orig", error))]
        lines = [line for row in rows for line in str(row).splitlines()]
        return [] if lines == ["ok"] else lines

    # --- the lead ----------------------------------------------------------------------------------------

    def stand(self, candidate: Candidate, lease_s: float) -> Standing:
        """As in `SharedStore`."""
        try:
            with explain(self.name), self._beginning() as connection:
                self._epoch, standing = sqllead.stand(connection, candidate, lease_s, self._epoch)
        except IntegrityError:  # Two who came first at the same time.
            return self.stand(candidate, lease_s)
        return standing

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that is refused once the lead, if this store ever had it, is somebody else's."""
        with self._beginning() as connection:
            if self._epoch:
                sqllead.check(connection, self._epoch)
            yield connection

    @contextmanager
    def _beginning(self) -> Iterator[Connection]:
        with self._engine.connect().execution_options(shoal_writes=True) as connection, connection.begin():
            yield connection


def _parse(url: str) -> URL:
    if "://" not in url and url.partition(":")[0] not in _DRIVERS:
        return URL.create("sqlite+pysqlite", database=url)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # The second: a port that is no number.
        raise _unknown(_SECRET.sub(r"\1***@", url)) from None
    driver = _DRIVERS.get(parsed.drivername.partition("+")[0])
    if driver is None or (driver.startswith("sqlite") and not parsed.database):
        raise _unknown(_show(parsed))
    return parsed.set(drivername=driver)


def _show(url: URL) -> str:
    """As messages have it: a password may stand in the query, too."""
    secret = [key for key in url.query if "password" in key]
    return url.difference_update_query(secret).render_as_string(hide_password=True)


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(url, connect_args={"timeout": BUSY_S})
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        engine = create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": BUSY_S})
    except (ImportError, NoSuchModuleError):
        raise ShoalError(
            "SH-LOG-04", "PostgreSQL needs the package psycopg", "run: pip install 'shoal[postgres]'"
        ) from None
    event.listen(engine, "connect", _set_up_postgres)
    return engine


def _set_up_sqlite(connection: sqlite3.Connection, _: Any) -> None:
    # The driver would begin transactions too late, at the first write; `_begin_sqlite` does it instead.
    connection.isolation_level = None
    # Small pages leave little unused room, in which a flipped byte would hurt nobody but go unnoticed.
    for setting in ("page_size=1024", "journal_mode=DELETE", "synchronous=FULL", "cell_size_check=ON"):
        connection.execute(f"PRAGMA {setting}")


def _begin_sqlite(connection: Connection) -> None:
    # A writer locks before it looks at the length: one who upgraded a read lock could find itself refused.
    writes = connection.get_execution_options().get("shoal_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _set_up_postgres(connection: Any, _: Any) -> None:
    # Servers are often told to acknowledge before the disk has it; what we return for must be durable.
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit TO on")
    connection.commit()


def _keep(connection: Connection, run: RunId, key: str, value: bytes) -> None:
    row = {"run": run, "key": key, "value": value, "checksum": value_checksum(run, key, value)}
    connection.execute(delete(_kept).where(_kept.c.run == run, _kept.c.key == key))
    connection.execute(insert(_kept).values(row))


def value_checksum(run: RunId, key: str, value: bytes) -> bytes:
    return blake3.blake3(f"{run}/{key}/".encode() + value).digest()[:8]


def _not_the_head(run: RunId, position: int, found: str) -> ShoalError:
    return ShoalError(
        "SH-LOG-03",
        f"entry {position} of run {run[:12]} does not fit {found}",
        "another process writes this log; stop one of them",
    )


def _unknown(url: str) -> ShoalError:
    return ShoalError(
        "SH-LOG-04",
        f"{url!r} is not the address of a log store",
        "give sqlite:///PATH or postgresql://USER@HOST/DATABASE",
    )
