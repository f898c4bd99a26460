"""Writing a run's ledger and its receipts, with the coordinator's key.

In flow the coordinator's home; out flow pages in its store and files for nodes. Invariant: what is written is what the
log gives; writing it again changes nothing.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from shoal.apps.credit_reading import FoundCredit, read_credit
from shoal.apps.home import find_home
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.credit.ledger import (
    MAX_RECEIPT_BYTES,
    Bookkeeper,
    PayReceipt,
    StoredPage,
    check_receipt,
    disagrees,
    read_receipt,
    receipts_of,
)
from shoal.node.keeping import RECEIPT_NAMES, RECEIPTS
from shoal.wire.identity import Identity
from shoal.worlds.real.failpoints import reached
from shoal.worlds.real.keys import load_or_create_identity
from shoal.worlds.real.sqlstore import SqlLogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    run: RunId
    pages: int
    total_micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    run: RunId
    count: int


def post_ledger(home: Path | None, store: str | None, run: str) -> Posted:
    """Raises what `read_credit` does, SH-KEY-02 and SH-CREDIT-01."""
    found, pages, _ = _post(home, store, run)
    total = pages[-1].page.total_micro if pages else 0
    return Posted(run=found, pages=len(pages), total_micro=total)


def write_receipts(home: Path | None, store: str | None, run: str, out: Path) -> Written:
    """A file for each page and node, OUT/NODE/PAGE.receipt."""
    found, pages, identity = _post(home, store, run)
    made = receipts_of(pages, identity)
    for receipt, encoded in made:
        path = out / receipt.node / f"{receipt.page:08}.receipt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded)
        except OSError as error:
            raise ShoalError(
                "SH-DISK-02", f"{path}: {error.strerror or error}", "choose another folder with --out"
            ) from error
    return Written(run=found, count=len(made))


def _post(home: Path | None, store: str | None, run: str) -> tuple[RunId, list[StoredPage], Identity]:
    """Have the stored ledger up with the log; the run, all its pages, and the coordinator's key."""
    found = read_credit(home, store, run, node=False)
    account, identity = found.account, _key(home, found)
    with closing(SqlLogStore(store or find_home(home).store_url, create=False)) as opened:
        pages = Bookkeeper(opened, account.run, account.spec, identity, reached).catch_up()
    return account.run, pages, identity


def _key(home: Path | None, found: FoundCredit) -> Identity:
    identity = load_or_create_identity(find_home(home).coordinator_key).first
    if identity.public != found.coordinator:
        raise ShoalError(
            "SH-KEY-02",
            f"run {found.account.run[:12]} is not of coordinator {NodeId(identity.node)[:12]}",
            "give the home of the coordinator that founded the run",
        )
    return identity


def last_receipt(home: Path | None, run: RunId) -> Path:
    """The last receipt that this machine's node has kept. Raises SH-CREDIT-01 if there is none."""
    folder = find_home(home).node / "runs" / run / RECEIPTS
    kept = sorted(folder.glob(RECEIPT_NAMES))
    if not kept:
        raise ShoalError(
            "SH-CREDIT-01",
            f"there is no receipt of run {run[:12]} in {folder}",
            "name a receipt's file; a node has one once an update of its was sealed",
        )
    return kept[-1]


def checked_receipt(found: FoundCredit, path: Path) -> PayReceipt:
    """The receipt in a file, if it holds. Raises SH-CREDIT-01."""
    with open(path, "rb") as file:
        encoded = file.read(MAX_RECEIPT_BYTES + 1)
    run = found.account.run
    receipt = read_receipt(encoded, run, found.coordinator)
    if receipt is None:
        raise ShoalError(
            "SH-CREDIT-01",
            f"{path.name} is no receipt that the coordinator of run {run[:12]} signed",
            "check that file and run belong together",
        )
    known = 0 <= receipt.position < len(found.hashes)
    if not known:
        raise ShoalError(
            "SH-CREDIT-01",
            f"{path.name} is of entry {receipt.position}, and this log has {len(found.hashes)}",
            "check it against a longer copy of the log",
        )
    if not check_receipt(receipt, found.hashes[receipt.position], found.account.lines):
        raise disagrees(run, path.name)
    return receipt
