"""The embedded ledger on every kind of store that a run's log may be in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from shoal.base.errors import ShoalError
from shoal.base.logstore import LogStore
from shoal.credit.account import account_of
from shoal.credit.ledger import PREFIX, Bookkeeper, check_ledger, page_key, read_receipt, receipts_of
from shoal.credit.spec import CreditSpec
from shoal.runlog.files import FileLogStore
from shoal.wire.signed import sign
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.sqlstore import SqlLogStore

from .postgres import running_postgres

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from credit.stories import Teller
from runlog.small_log import COORDINATOR, RUN

SPEC = CreditSpec(coordinator_percent=3)
ENTRIES = Teller(7, SPEC).tell(8).entries


@pytest.fixture(params=["files", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogStore]:
    if request.param == "files":
        yield FileLogStore(FileDisk(tmp_path), lambda point: None)
    elif request.param == "sqlite":
        yield SqlLogStore(f"sqlite:///{tmp_path}/store.sqlite")
    else:
        with running_postgres() as url:
            opened = SqlLogStore(url)
            yield opened
            opened.close()


def _pages(store: LogStore) -> list[bytes]:
    return [page for _, page in sorted(store.kept(RUN, PREFIX).items())]


def test_the_ledger_grows_with_the_log_and_starts_again_anywhere(store: LogStore) -> None:
    lines = account_of(ENTRIES, SPEC).lines
    keeper = Bookkeeper(store, RUN, SPEC, COORDINATOR)
    for position, entry in enumerate(ENTRIES):
        store.append(RUN, position, entry)
        if position % 5 == 0:
            keeper.catch_up()
        if position % 11 == 0:
            keeper = Bookkeeper(store, RUN, SPEC, COORDINATOR)
    keeper.catch_up()
    pages = _pages(store)
    assert check_ledger(pages, RUN, COORDINATOR.public, lines) == len(pages) > 3
    assert keeper.length == len(ENTRIES)
    again = Bookkeeper(store, RUN, SPEC, COORDINATOR).catch_up()
    assert [one.encoded for one in again] == pages == _pages(store)
    # The ledger is not part of the log, and not a run of its own.
    assert store.runs() == [RUN] and store.length(RUN) == len(ENTRIES)


def test_two_keepers_at_once_write_the_same_pages(store: LogStore) -> None:
    keepers = [Bookkeeper(store, RUN, SPEC, COORDINATOR) for _ in range(2)]
    for position, entry in enumerate(ENTRIES):
        store.append(RUN, position, entry)
        keepers[position % 2].catch_up()
    for keeper in keepers:
        keeper.catch_up()
    assert check_ledger(_pages(store), RUN, COORDINATOR.public, account_of(ENTRIES, SPEC).lines) > 3


def test_an_altered_page_is_found_by_whoever_looks(store: LogStore) -> None:
    for position, entry in enumerate(ENTRIES):
        store.append(RUN, position, entry)
    Bookkeeper(store, RUN, SPEC, COORDINATOR).catch_up()
    pages = _pages(store)
    lines = account_of(ENTRIES, SPEC).lines
    for wrong in (pages[2], pages[1][:-1] + b"\0", b""):
        store.keep(RUN, page_key(1), wrong)
        with pytest.raises(ShoalError, match="page 1") as caught:
            Bookkeeper(store, RUN, SPEC, COORDINATOR).catch_up()
        assert caught.value.code == "SH-CREDIT-01"
        with pytest.raises(ShoalError, match="page 1"):
            check_ledger(_pages(store), RUN, COORDINATOR.public, lines)


def test_a_page_that_the_coordinator_signed_and_the_log_does_not_give_is_found(store: LogStore) -> None:
    for position, entry in enumerate(ENTRIES):
        store.append(RUN, position, entry)
    pages = Bookkeeper(store, RUN, SPEC, COORDINATOR).catch_up()
    page = pages[0].page
    richer = msgspec.structs.replace(page.lines[0], micro=page.lines[0].micro + 1)
    forged = msgspec.structs.replace(page, lines=(richer, *page.lines[1:]))
    lines = account_of(ENTRIES, SPEC).lines
    with pytest.raises(ShoalError, match="page 0"):
        check_ledger([msgspec.msgpack.encode(sign(COORDINATOR, forged))], RUN, COORDINATOR.public, lines)


def test_receipts_are_signed_and_cumulative(store: LogStore) -> None:
    for position, entry in enumerate(ENTRIES):
        store.append(RUN, position, entry)
    pages = Bookkeeper(store, RUN, SPEC, COORDINATOR).catch_up()
    last: dict[str, int] = {}
    for receipt, encoded in receipts_of(pages, COORDINATOR):
        assert read_receipt(encoded, RUN, COORDINATOR.public) == receipt
        assert receipt.cumulative_micro == last.get(receipt.node, 0) + receipt.micro
        last[receipt.node] = receipt.cumulative_micro
    assert last == account_of(ENTRIES, SPEC).balances
