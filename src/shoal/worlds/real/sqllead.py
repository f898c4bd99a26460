"""The lead of a store in SQL: one row that says whose it is and until when, by the database's own clock.

In flow candidates; out flows who leads. Invariant: every change of leader raises the epoch, in the transaction that
reads the row, and a writer's transaction holds the row at its own epoch until it commits: no write of an earlier leader
comes after a later one's first look.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    MetaData,
    Row,
    String,
    Table,
    delete,
    insert,
    select,
    text,
    update,
)

from shoal.base.lead import Candidate, Standing, lead_lost

SEEN_S = 30
"""A coordinator that has not asked for so long is gone."""

tables = MetaData()
_leads = Table(
    "shoal_leads",
    tables,
    Column("name", String, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("leader", String, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
)
_candidates = Table(
    "shoal_candidates",
    tables,
    Column("name", String, primary_key=True),
    Column("address", String, nullable=False),
    Column("blobs", String, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
)
_ROW = "the lead"


def stand(connection: Connection, me: Candidate, lease_s: float, epoch: int) -> tuple[int, Standing]:
    """Ask for the lead, holding it at `epoch` or, with 0, not yet; the epoch at which it is held now, or 0."""
    now = _now_ms(connection)
    row = connection.execute(select(_leads).where(_leads.c.name == _ROW).with_for_update()).one_or_none()
    if row is None:
        row = _begin(connection)
    if epoch and row.epoch != epoch:
        raise lead_lost(str(row.leader))
    free = row.until_ms <= now or row.leader == me.name
    if free:
        # The same home again is the same coordinator, restarted: it does not wait for its own lease.
        epoch = epoch or int(row.epoch) + 1
        values = {"epoch": epoch, "leader": me.name, "until_ms": now + int(lease_s * 1000)}
        connection.execute(update(_leads).where(_leads.c.name == _ROW).values(values))
    others = _introduce(connection, me, now)
    leader = me if free else next((c for c in others if c.name == row.leader), Candidate(str(row.leader)))
    return epoch, Standing(leads=free, leader=leader, others=_leader_first(others, leader))


def check(connection: Connection, epoch: int) -> None:
    """Raise SH-LEAD-01 unless the lead is still at this epoch, and keep it there until the transaction ends."""
    row = connection.execute(
        select(_leads.c.epoch, _leads.c.leader).where(_leads.c.name == _ROW).with_for_update(read=True)
    ).one_or_none()
    if row is None or row.epoch != epoch:
        raise lead_lost(str(row.leader) if row else "unknown")


def _begin(connection: Connection) -> Row[Any]:
    first = {"name": _ROW, "epoch": 0, "leader": "", "until_ms": 0}
    connection.execute(insert(_leads).values(first))
    return connection.execute(select(_leads).where(_leads.c.name == _ROW)).one()


def _introduce(connection: Connection, me: Candidate, now: int) -> list[Candidate]:
    """Note that this candidate is there; the others."""
    connection.execute(delete(_candidates).where(_candidates.c.name == me.name))
    row = {"name": me.name, "address": me.address, "blobs": me.blobs, "seen_ms": now}
    connection.execute(insert(_candidates).values(row))
    seen = select(_candidates).where(_candidates.c.seen_ms > now - SEEN_S * 1000)
    rows = connection.execute(seen.order_by(_candidates.c.name)).all()
    return [Candidate(row.name, row.address, row.blobs) for row in rows if row.name != me.name]


def _leader_first(others: list[Candidate], leader: Candidate) -> tuple[Candidate, ...]:
    return tuple(sorted(others, key=lambda candidate: candidate.name != leader.name))


def _now_ms(connection: Connection) -> int:
    """The database's time; a file has no clock but that of the machine it is on."""
    if connection.dialect.name == "postgresql":
        now = connection.execute(text("SELECT extract(epoch FROM clock_timestamp()) * 1000")).scalar_one()
        return int(now)
    return time.time_ns() // 1_000_000
