"""What a run's settlement on a chain looks like to those who only look."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal.apps.api.settlements import settlement
from shoal.base.ids import NodeId, RunId
from shoal.chain.config import FILE, ChainConfig, JobTerms, write_config
from shoal.chain.epochs import Boundary, EpochRecord, keep_record, make_record
from shoal.chain.outbox import FINAL, PENDING, Outgoing, SqlOutbox
from shoal.chain.presets import CHAINS
from shoal.worlds.real.sqlstore import SqlLogStore

RUN = RunId("ab" * 16)
NODE, WALLET = NodeId("n1"), "0x" + "11" * 20
TERMS = JobTerms(job=3, wei_per_micro=10**12)
ACCOUNT = "0x" + "22" * 20


def _records() -> list[EpochRecord]:
    first = make_record(RUN, TERMS, Boundary(1, 10, "h", {NODE: 5}), {NODE: WALLET}, None)
    return [first, make_record(RUN, TERMS, Boundary(2, 20, "i", {NODE: 9}), {NODE: WALLET}, first)]


def _sent(epoch: int, attempt: int, nonce: int, state: str) -> Outgoing:
    return Outgoing(
        key=f"root.{TERMS.job}.{epoch:08}.{attempt}",
        nonce=nonce,
        to=WALLET,
        data=b"",
        value=0,
        gas=1,
        max_fee=1,
        priority_fee=1,
        raws=(b"",),
        hashes=(f"0x{nonce:064x}",),
        state=state,
        block=77 if state == FINAL else 0,
        mined_hash=f"0x{nonce:064x}" if state == FINAL else "",
    )


def _config(folder: Path, terms: JobTerms) -> None:
    chain = ChainConfig(
        chain=CHAINS["anvil"], registry=WALLET, rewards=ACCOUNT, genesis="", jobs={RUN: terms}
    )
    write_config(folder, chain)


def _store(folder: Path) -> str:
    return f"sqlite:///{folder}/store.sqlite"


def test_epochs_are_shown_with_what_became_of_their_transactions(tmp_path: Path) -> None:
    _config(tmp_path, TERMS)
    outbox = SqlOutbox(_store(tmp_path))
    for record in _records():
        keep_record(outbox, record)
    outbox.add(ACCOUNT, [_sent(1, 0, 0, "failed"), _sent(1, 1, 1, FINAL), _sent(9, 0, 2, PENDING)])
    outbox.close()
    found = settlement(tmp_path, SqlLogStore(_store(tmp_path)), RUN)
    assert found is not None and (found.chain, found.job, found.contract) == ("anvil", 3, ACCOUNT)
    second, first = found.items
    assert (first.state, first.block, first.transaction) == (FINAL, 77, f"0x{1:064x}"), (
        "the last attempt counts"
    )
    assert (second.state, second.transaction, second.position) == ("recorded", None, 20)
    assert (first.total, first.added) == (str(5 * 10**12), str(5 * 10**12))
    assert (second.total, second.added, second.addresses) == (str(9 * 10**12), str(4 * 10**12), 1)


def test_vouchers_are_sent_by_nobody_here(tmp_path: Path) -> None:
    terms = msgspec.structs.replace(TERMS, mode="vouchers")
    _config(tmp_path, terms)
    store = SqlLogStore(_store(tmp_path))
    keep_record(store, msgspec.structs.replace(_records()[0], mode="vouchers"))
    found = settlement(tmp_path, store, RUN)
    assert found is not None and [item.state for item in found.items] == ["signed"]


@pytest.mark.parametrize("file", [None, "not json", "{}"])
def test_without_a_job_there_is_nothing_to_show(tmp_path: Path, file: str | None) -> None:
    if file is not None:
        (tmp_path / FILE).write_text(file)
    assert settlement(tmp_path, SqlLogStore(_store(tmp_path)), RUN) is None


def test_a_run_without_a_job_shows_none(tmp_path: Path) -> None:
    _config(tmp_path, TERMS)
    assert settlement(tmp_path, SqlLogStore(_store(tmp_path)), RunId("cd" * 16)) is None
