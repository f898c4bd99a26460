"""The embedded ledger: pages of credit, hash-chained and signed, in the store that holds the run's log.

In flow a log and the coordinator's key; out flow pages, balances, and receipts that a node keeps. Invariant: a page is
a pure function of the log, the pages before it and the key (it holds no time and no randomness), so that writing it
again after a crash, or by two processes at once, writes the same bytes; a stored page is never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
PAGES_READ = 1000
"""Stored pages that are compared at a time; a power of ten."""
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


class Ledger:
    """Writes one run's pages, in order and from the first. Those that are stored already are compared, so that it is
    safe to kill at any point, and to run twice."""

    def __init__(
        self,
        store: LogStore,
        run: RunId,
        identity: Identity,
        reached: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._store, self._run, self._identity, self._reached = store, run, identity, reached
        self._stored: dict[str, bytes] = {}
        """Pages that were stored before, some at a time."""
        self._hash = ""
        self._count = 0
        self._total_micro = 0
        self.latest: dict[NodeId, PayReceipt] = {}
        """The last receipt of every node."""

    def write(self, position: int, head: str, lines: tuple[Line, ...]) -> StoredPage:
        """The next page, stored. Raises SH-CREDIT-01 where another is stored in its place."""
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
        self._keep(stored)
        self._hash, self._count, self._total_micro = stored.hash, page.number + 1, total
        for receipt in next_receipts(stored, self.latest):
            self.latest[receipt.node] = receipt
        return stored

    def _keep(self, stored: StoredPage) -> None:
        key, number = page_key(stored.page.number), stored.page.number
        if number % PAGES_READ == 0:
            self._stored = self._store.kept(self._run, key[: -len(str(PAGES_READ - 1))])
        known = self._stored.pop(key, None)
        if known is None:
            self._reached("ledger.before-page")
            self._store.keep(self._run, key, stored.encoded)
            self._reached("ledger.page")
        elif known != stored.encoded:
            raise disagrees(self._run, f"page {number} of the stored ledger")

    def receipt(self, node: NodeId) -> bytes | None:
        """What a node is given to keep: its last receipt, signed; None before it earned anything."""
        latest = self.latest.get(node)
        return None if latest is None else _encode(sign(self._identity, latest))


class Bookkeeper:
    """Keeps one run's ledger up with its log, in a process beside the coordinator's."""

    def __init__(
        self,
        store: LogStore,
        run: RunId,
        spec: CreditSpec,
        identity: Identity,
        reached: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._store, self._run = store, run
        self._crediting = Crediting(spec)
        self._ledger = Ledger(store, run, identity, reached)

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
                made.append(self._ledger.write(link.entry.position, link.hash, lines))
        return made


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


def next_receipts(stored: StoredPage, latest: Mapping[NodeId, PayReceipt]) -> list[PayReceipt]:
    """For each node on a page, what it earned there, and in all with its receipt before."""
    page = stored.page
    rounds: dict[NodeId, int] = {}
    for line in page.lines:
        rounds[line.node] = max(line.round, rounds.get(line.node, 0))
    return [
        PayReceipt(
            run=page.run,
            node=node,
            round=rounds[node],
            position=page.position,
            head=page.head,
            page=page.number,
            ledger=stored.hash,
            micro=micro,
            cumulative_micro=micro + (latest[node].cumulative_micro if node in latest else 0),
        )
        for node, micro in balances_of(page.lines).items()
    ]


def receipts_of(pages: Iterable[StoredPage], identity: Identity) -> list[tuple[PayReceipt, bytes]]:
    """For every page, what each node on it earned there and has earned in all, signed."""
    latest: dict[NodeId, PayReceipt] = {}
    made = []
    for stored in pages:
        for receipt in next_receipts(stored, latest):
            latest[receipt.node] = receipt
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
