"""A voter's part, durable: what it promised and stored, beside its copy of the log.

In flow what candidates and leaders ask; out flow answers. Invariant: whatever an answer promises is on disk before the
answer leaves; a voter whose record is damaged grants and stores nothing more, and one that has lost entries of its log
nothing until it has them again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import blake3
import msgspec

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.base.logstore import LogStore
from shoal.runlog.ballots import Box, Copy, has_lost_entries, store, vote
from shoal.runlog.chain import read_link
from shoal.wire.ballots import NO_BALLOT, AskVote, Ballot, Propose, Stored, Vote
from shoal.wire.signed import Signed, parse

log = logging.getLogger(__name__)

RECORD = "ballot"
"""Where the store keeps it."""
FORGOTTEN = b""
"""Kept instead of a record that was lost: a voter that finds nothing at all would take it that it never promised."""
PAGE_ENTRIES, PAGE_BYTES = 256, 1 << 20
SUM_BYTES = 16


class _Record(msgspec.Struct, frozen=True, array_like=True):
    promised: Ballot
    pending: Signed | None


class Voter:
    """One voter of one run. Its calls block; one at a time, and not beside an append."""

    def __init__(self, log: LogStore, run: RunId, public: Callable[[], bytes | None]) -> None:
        self.name = ""
        """Of a coordinator, so that it is not counted twice."""
        self._log, self._run, self._public = log, run, public
        self._box: Box | None = None
        self._damaged = False

    def answer(self, message: AskVote | Propose) -> Vote | Stored | None:
        """None where it must abstain."""
        box, copy = self._load(), self.copy()
        if self._damaged or message.run != self._run or has_lost_entries(box, copy):
            return None
        after: Box
        said: Vote | Stored
        if isinstance(message, AskVote):
            after, said = vote(box, message, copy)
        else:
            after, said = store(box, message, copy)
        if after != box:
            self._save(after)
        return msgspec.structs.replace(said, name=self.name)

    def copy(self) -> Copy:
        run, log = self._run, self._log
        return Copy(
            run=run,
            public=self._public(),
            length=log.length(run),
            hash_at=lambda position: read_link(next(log.read(run, position, position + 1))).hash,
            page=self.page,
        )

    def page(self, start: int) -> tuple[bytes, ...]:
        """Entries from `start` on, as many as a message takes."""
        found: list[bytes] = []
        size = 0
        for entry in self._log.read(self._run, start, start + PAGE_ENTRIES):
            size += len(entry)
            if found and size > PAGE_BYTES:
                break
            found.append(entry)
        return tuple(found)

    @property
    def promised(self) -> Ballot:
        return self._load().promised

    def _load(self) -> Box:
        if self._box is None:
            record = self._read_record()
            self._damaged = record is None
            self._box = Box(record.promised, record.pending) if record else Box()
            if record is None:
                cause = "the record of its promises is damaged: it votes no more, and the other voters go on"
                log.warning("abstains", extra={"run": self._run[:12], "cause": cause})
        return self._box

    def _read_record(self) -> _Record | None:
        """None for a damaged one; one that promises nothing where none was ever kept."""
        try:
            kept = self._log.kept(self._run, RECORD).get(RECORD)
        except ShoalError as error:
            if error.code != "SH-LOG-01":
                raise
            return None
        return _read(kept) if kept is not None else _Record(NO_BALLOT, None)

    def _save(self, box: Box) -> None:
        body = msgspec.msgpack.encode(_Record(box.promised, box.pending))
        self._log.keep(self._run, RECORD, _sum(body) + body)
        self._box = box


def is_record(kept: bytes) -> bool:
    """Whether this is a voter's record, undamaged."""
    return _read(kept) is not None


def _read(kept: bytes) -> _Record | None:
    body = kept[SUM_BYTES:]
    return parse(body, _Record) if _sum(body) == kept[:SUM_BYTES] else None


def _sum(body: bytes) -> bytes:
    return blake3.blake3(body).digest()[:SUM_BYTES]
