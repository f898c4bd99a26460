"""Transactions that must reach the chain, exactly once each, whatever happens to this process.

In flow signed transactions; out flow those that are still under way. Invariant: a transaction is on disk, with its
nonce and under its key, before anyone hears of it; no key and no nonce is ever given out twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import blake3
import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    bindparam,
    delete,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from shoal.base.errors import ShoalError
from shoal.base.logstore import LogStore
from shoal.worlds.real.sqlfailures import damaged, explain
from shoal.worlds.real.sqlstore import SqlLogStore

PENDING, MINED, FINAL, FAILED, LOST = "pending", "mined", "final", "failed", "lost"
UNDER_WAY = (PENDING, MINED)

_tables = MetaData()
_outbox = Table(
    "shoal_outbox",
    _tables,
    Column("account", String, primary_key=True),
    Column("nonce", BigInteger, primary_key=True, autoincrement=False),
    Column("key", String, nullable=False),
    Column("state", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("checksum", LargeBinary, nullable=False),
    UniqueConstraint("account", "key"),
)


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction, with every version of it that was signed: they share the nonce, so at most one counts."""

    key: str
    nonce: int
    to: str
    data: bytes
    value: int
    gas: int
    max_fee: int
    priority_fee: int
    raws: tuple[bytes, ...]
    hashes: tuple[str, ...]
    state: str = PENDING
    block: int = 0
    """Where it was mined."""
    gas_used: int = 0
    mined_hash: str = ""


class SqlOutbox(SqlLogStore):
    """In the same database as the logs, SQLite or PostgreSQL. One process at a time sends for an account."""

    def _check_tables(self, create: bool) -> None:
        super()._check_tables(create)
        with self._writing() as connection:
            _tables.create_all(connection)

    def add(self, account: str, items: Sequence[Outgoing]) -> None:
        """Store new transactions, all or none. Raises SH-LOG-03 if another process took a key or a nonce."""
        try:
            with explain(self.name), self._writing() as connection:
                connection.execute(insert(_outbox), [_row(account, item) for item in items])
        except IntegrityError:
            raise ShoalError(
                "SH-LOG-03",
                f"another process sends transactions for {account}",
                "stop one of them; nothing was sent twice",
            ) from None

    def put(self, account: str, items: Sequence[Outgoing]) -> None:
        """Store new versions or states of known transactions, all or none."""
        rows = [_row(account, item) for item in items]
        changes = [{"of": row["account"], "at": row["nonce"], **_without_place(row)} for row in rows]
        where = (_outbox.c.account == bindparam("of")) & (_outbox.c.nonce == bindparam("at"))
        with explain(self.name), self._writing() as connection:
            if changes:
                connection.execute(update(_outbox).where(where), changes)

    def under_way(self, account: str) -> list[Outgoing]:
        """What is not final yet, in the order of nonces."""
        return self._read(account, _outbox.c.state.in_(UNDER_WAY))

    def find(self, account: str, prefix: str = "") -> list[Outgoing]:
        """Everything whose key begins so, in the order of nonces."""
        return self._read(account, func.substr(_outbox.c.key, 1, len(prefix)) == prefix)

    def keys(self, account: str) -> set[str]:
        query = select(_outbox.c.key).where(_outbox.c.account == account)
        with explain(self.name), self._engine.connect() as connection:
            return set(connection.execute(query).scalars())

    def next_nonce(self, account: str) -> int:
        query = select(func.max(_outbox.c.nonce)).where(_outbox.c.account == account)
        with explain(self.name), self._engine.connect() as connection:
            last = connection.execute(query).scalar()
        return 0 if last is None else int(last) + 1

    def forget(self, account: str) -> None:
        """Drop everything of an account, whose chain is no more."""
        with explain(self.name), self._writing() as connection:
            connection.execute(delete(_outbox).where(_outbox.c.account == account))

    def _read(self, account: str, which: ColumnElement[bool]) -> list[Outgoing]:
        return _read_from(self, (_outbox.c.account == account) & which)


def sent_from(store: LogStore, prefix: str) -> list[Outgoing]:
    """Everything in a store whose key begins so, of every account, in the order of nonces; for those who only look."""
    if not isinstance(store, SqlLogStore) or not inspect(store._engine).has_table(_outbox.name):
        return []
    return _read_from(store, func.substr(_outbox.c.key, 1, len(prefix)) == prefix)


def _read_from(store: SqlLogStore, which: ColumnElement[bool]) -> list[Outgoing]:
    query = select(_outbox.c.body, _outbox.c.checksum).where(which).order_by(_outbox.c.nonce)
    with explain(store.name), store._engine.connect() as connection:
        rows = connection.execute(query).all()
    items = []
    for body, checksum in rows:
        if not isinstance(body, bytes) or _checksum(body) != checksum:
            raise damaged(store.name, "a transaction that waits to be sent was altered")
        items.append(msgspec.convert(json.loads(body), Outgoing))
    return items


def _row(account: str, item: Outgoing) -> dict[str, object]:
    # As Python's own JSON: amounts of wei are larger than the integers of other formats.
    body = json.dumps(msgspec.to_builtins(item)).encode()
    return {
        "account": account,
        "nonce": item.nonce,
        "key": item.key,
        "state": item.state,
        "body": body,
        "checksum": _checksum(body),
    }


def _without_place(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in ("account", "nonce")}


def _checksum(body: bytes) -> bytes:
    return blake3.blake3(body).digest()[:8]
