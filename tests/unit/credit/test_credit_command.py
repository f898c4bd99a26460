"""`shoal credit`: on a coordinator's store and a node's copy, sound and tampered with; killed while it writes."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from runlog.small_log import COORDINATOR, NODES, RUN
from typer.testing import CliRunner

from shoal.apps.cli import app, find
from shoal.base.errors import ShoalError
from shoal.credit.account import account_of
from shoal.credit.ledger import PREFIX, check_ledger
from shoal.credit.spec import CreditSpec
from shoal.runlog.files import FileLogStore
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.sqlstore import SqlLogStore

from .credit_from_log import credit, entries_in
from .stories import Teller

SPEC = CreditSpec(rule="quality", coordinator_percent=3)
ENTRIES = Teller(11, SPEC).tell(8).entries
ACCOUNT = account_of(ENTRIES, SPEC)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A coordinator's home and a node's, as a run leaves them."""
    coordinator = tmp_path / "coordinator"
    coordinator.mkdir()
    key = coordinator / "key"
    key.write_text(COORDINATOR.secret.hex() + "\n")
    key.chmod(0o600)
    with closing(SqlLogStore(f"sqlite:///{coordinator}/store.sqlite")) as store:
        for position, entry in enumerate(ENTRIES):
            store.append(RUN, position, entry)
    node = tmp_path / "node" / "runs" / RUN
    node.mkdir(parents=True)
    copy = FileLogStore(FileDisk(node), lambda point: None)
    for position, entry in enumerate(ENTRIES):
        copy.append(RUN, position, entry)
    return tmp_path


def run(home: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["credit", *arguments, "--home", str(home)])


def said(home: Path, *arguments: str) -> Any:
    result = run(home, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def code(result: Any) -> str:
    found = find(result.exception, ShoalError)
    assert isinstance(found, ShoalError), result.output
    return found.code


def test_both_copies_show_the_same_and_an_outsider_counts_the_same(home: Path) -> None:
    ours, nodes = said(home, "show"), said(home, "show", "--node")
    assert ours == nodes
    shown = {one["node"]: one["micro"] for one in ours["nodes"]}
    assert shown == ACCOUNT.balances
    paid = {node: micro for node, micro in shown.items() if micro}
    assert credit(entries_in(home / "coordinator" / "store.sqlite")) == paid
    assert "credits" in run(home, "show").output


def test_a_statement_adds_up(home: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run(home, "statement").output)))
    assert sum(int(row["micro"]) for row in rows) == ACCOUNT.total_micro
    one = list(csv.DictReader(io.StringIO(run(home, "statement", NODES[0].node[:12]).output)))
    assert sum(int(row["micro"]) for row in one) == ACCOUNT.balances[NODES[0].node]


def test_explain_finds_a_node_by_its_id_or_says_who_there_is(home: Path) -> None:
    answer = said(home, "explain", NODES[0].node[:10])
    assert answer["node"] == NODES[0].node and "earned" in answer["words"][0]
    for nobody in ("zz", "n"):  # everybody in this log is called n
        assert code(run(home, "explain", nobody)) == "SH-CREDIT-02"


def test_the_ledger_is_posted_verified_and_receipted(home: Path, tmp_path: Path) -> None:
    assert said(home, "verify")["pages"] == 0
    posted = said(home, "post")
    assert posted["total_micro"] == ACCOUNT.total_micro
    verified = said(home, "verify")
    assert verified["pages"] == posted["pages"] > 3
    assert verified["balances"] == ACCOUNT.balances
    out = tmp_path / "receipts"
    assert said(home, "receipts", "--out", str(out))["receipts"] > 3
    last = sorted((out / NODES[0].node).iterdir())[-1]
    held = said(home, "check", str(last), "--node")
    assert held["cumulative_micro"] == ACCOUNT.balances[NODES[0].node]
    last.write_bytes(last.read_bytes()[:-1] + b"\1")
    assert code(run(home, "check", str(last))) == "SH-CREDIT-01"


def test_a_tampered_ledger_is_refused(home: Path) -> None:
    said(home, "post")
    with closing(SqlLogStore(f"sqlite:///{home}/coordinator/store.sqlite")) as store:
        pages = store.kept(RUN, PREFIX)
        store.keep(RUN, sorted(pages)[1], pages[sorted(pages)[2]])
    assert code(run(home, "verify")) == "SH-CREDIT-01"
    assert code(run(home, "post")) == "SH-CREDIT-01"


def test_a_tampered_log_has_no_credit(home: Path) -> None:
    with closing(sqlite3.connect(home / "coordinator" / "store.sqlite")) as store:
        entry = bytearray(store.execute("SELECT entry FROM shoal_entries WHERE position = 5").fetchone()[0])
        entry[len(entry) // 2] ^= 1
        store.execute("UPDATE shoal_entries SET entry = ? WHERE position = 5", (bytes(entry),))
        store.commit()
    assert code(run(home, "show")) == "SH-LOG-01"


def test_another_coordinators_key_posts_nothing(home: Path) -> None:
    (home / "coordinator" / "key").write_text(NODES[0].secret.hex())
    assert code(run(home, "post")) == "SH-KEY-02"


@pytest.mark.parametrize("point", ["ledger.before-page:1", "ledger.page:3"])
def test_a_kill_while_posting_loses_and_doubles_nothing(home: Path, point: str) -> None:
    command = [sys.executable, "-m", "shoal.apps.cli", "credit", "post", "--home", str(home)]
    environment = {**os.environ, "SHOAL_FAILPOINT": f"{point}:KILL", "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert said(home, "verify")["pages"] == int(point[-1]) - ("before" in point)
    said(home, "post")
    with closing(SqlLogStore(f"sqlite:///{home}/coordinator/store.sqlite")) as store:
        pages = [page for _, page in sorted(store.kept(RUN, PREFIX).items())]
    assert check_ledger(pages, RUN, COORDINATOR.public, ACCOUNT.lines) == said(home, "post")["pages"]


def test_a_node_checks_the_last_receipt_that_it_kept_itself(home: Path) -> None:
    assert code(run(home, "check", "--node")) == "SH-CREDIT-01"  # it has none yet
    out = home / "receipts"
    said(home, "receipts", "--out", str(out))
    kept = home / "node" / "runs" / RUN / "receipts"
    kept.mkdir()
    for path in (out / NODES[0].node).iterdir():
        (kept / path.name).write_bytes(path.read_bytes())
    (kept / "99999999.receipt.tmp").write_bytes(b"cut short")
    held = said(home, "check", "--node")
    assert held["node"] == NODES[0].node
    assert held["cumulative_micro"] == ACCOUNT.balances[NODES[0].node]
