"""The embedded ledger: pages of credit, hash-chained and signed, in the store that holds the run's log.

In flow a log and the coordinator's key; out flow pages, balances, and receipts that a node keeps. Invariant: a page is
a pure function of the log, the pages before it and the key (it holds no time and no randomness), so that writing it
again after a crash, or by two processes at once, writes the same bytes; a stored page is never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.base.logstore import LogStore
from shoal.credit.account import balances_of
from shoal.credit.crediting import Crediting
from shoal.credit.lines import Line
from shoal.credit.spec import CreditSpec
from shoal.runlog.chain import read_link
from shoal.wire.identity import Identity
from shoal.wire.signed import Signed, digest, open_signed, parse, sign

PREFIX = "ledger."
MAX_RECEIPT_BYTES = 1024
_encode = msgspec.msgpack.Encoder().encode


class LedgerPage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one entry of the log is worth."""

    run: RunId
    number: int
    previous: str
    """The hash of the page before this; "" for the first."""
    position: int
    head: str
    """The entry, by position and hash: everything up to it is the evidence."""
    lines: tuple[Line, ...]
    total_micro: int
    """Of this page and all before it."""


class PayReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The coordinator's word that a node has earned so much, for the node to keep."""

    run: RunId
    node: NodeId
    round: int
    position: int
    head: str
    page: int
    ledger: str
    """The page's hash."""
    micro: int
    cumulative_micro: int


@dataclass(frozen=True, slots=True)
class StoredPage:
    page: LedgerPage
    hash: str
    encoded: bytes


def page_key(number: int) -> str:
    return f"{PREFIX}{number:08}"


def read_page(encoded: bytes, public: bytes) -> StoredPage | None:
    """The page in stored bytes, or None if they are not one that the holder of `public` signed."""
    signed = parse(encoded, Signed)
    page = open_signed(signed, LedgerPage, public) if signed else None
    return StoredPage(page, digest(signed.payload), encoded) if signed and page else None


class Bookkeeper:
    """Keeps one run's ledger up with its log. Safe to kill at any point, and to run twice."""

    def __init__(
        self,
        store: LogStore,
        run: RunId,
        spec: CreditSpec,
        identity: Identity,
        reached: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._store, self._run, self._identity, self._reached = store, run, identity, reached
        self._crediting = Crediting(spec)
        self._stored = [encoded for _, encoded in sorted(store.kept(run, PREFIX).items())]
        self._hash = ""
        self._count = 0
        self._total_micro = 0
        self.cumulative: dict[NodeId, int] = {}
        """What every node has earned up to the last page."""

    @property
    def length(self) -> int:
        """Entries of the log that are in the ledger."""
        return self._crediting.view.length

    @property
    def over(self) -> bool:
        """The run has ended and no page will follow."""
        view = self._crediting.view
        return view.stopped is not None and view.best_start().at == view.at

    def catch_up(self) -> list[StoredPage]:
        """Take the log's new entries; the pages they make, stored. Raises SH-CREDIT-01 where a stored page is not what
        the log gives, and `BadEntry` where the log does not hold."""
        made = []
        for encoded in self._store.read(self._run, self.length):
            link = read_link(encoded)
            lines = self._crediting.take(link).lines
            if lines:
                made.append(self._write(link.entry.position, link.hash, lines))
        return made

    def _write(self, position: int, head: str, lines: tuple[Line, ...]) -> StoredPage:
        total = self._total_micro + sum(line.micro for line in lines)
        page = LedgerPage(
            run=self._run,
            number=self._count,
            previous=self._hash,
            position=position,
            head=head,
            lines=lines,
            total_micro=total,
        )
        signed = sign(self._identity, page)
        stored = StoredPage(page, digest(signed.payload), _encode(signed))
        if page.number < len(self._stored):
            if self._stored[page.number] != stored.encoded:
                raise disagrees(self._run, f"page {page.number} of the stored ledger")
        else:
            self._reached("ledger.before-page")
            self._store.keep(self._run, page_key(page.number), stored.encoded)
            self._stored.append(stored.encoded)
            self._reached("ledger.page")
        self._hash, self._count, self._total_micro = stored.hash, page.number + 1, total
        for node, micro in balances_of(lines).items():
            self.cumulative[node] = self.cumulative.get(node, 0) + micro
        return stored


def check_ledger(pages: Iterable[bytes], run: RunId, public: bytes, lines: Iterable[Line]) -> int:
    """Compare stored pages with the lines that a log gives; how many there are. Raises SH-CREDIT-01. The ledger may end
    before the log does, but not hold what the log does not give."""
    expected = _by_position(lines)
    previous, total, number = "", 0, 0
    for encoded in pages:
        stored = read_page(encoded, public)
        page = stored.page if stored else None
        whole = expected[number] if number < len(expected) else ()
        total += sum(line.micro for line in whole)
        sound = (
            page is not None
            and (page.run, page.number, page.previous) == (run, number, previous)
            and (page.lines, page.total_micro) == (whole, total)
        )
        if stored is None or not sound:
            raise disagrees(run, f"page {number} of the stored ledger")
        previous, number = stored.hash, number + 1
    return number


def _by_position(lines: Iterable[Line]) -> list[tuple[Line, ...]]:
    pages: dict[int, list[Line]] = {}
    for line in lines:
        pages.setdefault(line.position, []).append(line)
    return [tuple(pages[position]) for position in sorted(pages)]


def disagrees(run: RunId, what: str) -> ShoalError:
    return ShoalError(
        "SH-CREDIT-01",
        f"run {run[:12]}: {what} is not what the log gives",
        "the log decides: run `shoal log verify`, and if it holds, restore the ledger from a copy",
    )


# --- receipts --------------------------------------------------------------------------------------------


def receipts_of(pages: Iterable[StoredPage], identity: Identity) -> list[tuple[PayReceipt, bytes]]:
    """For every page, what each node on it earned there and has earned in all, signed."""
    cumulative: dict[NodeId, int] = {}
    made = []
    for stored in pages:
        page = stored.page
        for node, micro in balances_of(page.lines).items():
            cumulative[node] = cumulative.get(node, 0) + micro
            receipt = PayReceipt(
                run=page.run,
                node=node,
                round=max(line.round for line in page.lines if line.node == node),
                position=page.position,
                head=page.head,
                page=page.number,
                ledger=stored.hash,
                micro=micro,
                cumulative_micro=cumulative[node],
            )
            made.append((receipt, _encode(sign(identity, receipt))))
    return made


def read_receipt(encoded: bytes, run: RunId, public: bytes) -> PayReceipt | None:
    """What the coordinator of this run signed, or None for anything else."""
    signed = parse(encoded, Signed) if len(encoded) <= MAX_RECEIPT_BYTES else None
    receipt = open_signed(signed, PayReceipt, public) if signed else None
    return receipt if receipt is not None and receipt.run == run else None


def check_receipt(receipt: PayReceipt, head: str, lines: Iterable[Line]) -> bool:
    """Whether a receipt says what the log gives. `head` is the log's entry at its position."""
    own = [line for line in lines if line.node == receipt.node and line.position <= receipt.position]
    here = sum(line.micro for line in own if line.position == receipt.position)
    cumulative = sum(line.micro for line in own)
    return receipt.head == head and (receipt.micro, receipt.cumulative_micro) == (here, cumulative)
