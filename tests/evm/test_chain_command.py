"""`shoal chain` from deployment to claims, a dispute end to end, and everything that people get wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from shoal.chain.anvil import Anvil
from shoal.chain.config import read_config
from shoal.chain.epochs import boundaries, keep_record, make_record
from shoal.chain.payouts import kept_payouts
from shoal.chain.rpc import Rpc
from shoal.chain.signing import Account
from shoal.credit.ledger import Bookkeeper
from shoal.worlds.real.sqlstore import SqlLogStore

from .commands import NODE_KEY, code, founded, records, run, said
from .settling import COIN, COORDINATOR, KEY, RUN, SPEC, Office, address_of


def test_from_deployment_to_claims(home: Path, anvil: Anvil) -> None:
    founded(home, anvil.url)
    assert said(home, "settle", "--once", "--every-s", "0.05")["settled"] == 4
    last = records(home)[-1]
    assert said(home, "check", str(last), "--node")["wrong"] == []
    assert said(home, "claim", str(last))["gas"] > 0
    office = Office(home, anvil.url, None)  # type: ignore[arg-type]
    rpc = Rpc([anvil.url])
    for address, amount in office.earned().items():
        assert int(rpc.call("eth_getBalance", address, "latest"), 16) == amount
    status = said(home, "status")
    assert status["epoch"] == 4 and status["paid"] == sum(office.earned().values())
    assert said(home, "fund", "5")["gas"] > 0
    assert said(home, "status")["budget"] == COIN + 5
    assert said(home, "register")["gas"] > 0


def test_a_wrong_root_is_challenged_by_a_node_with_the_log_and_the_right_one_stands(
    home: Path, anvil: Anvil, monkeypatch: pytest.MonkeyPatch
) -> None:
    founded(home, anvil.url, "--window-s", "3600", "--bond", "1000")
    forge(home, doubled)
    said(home, "settle", "--once", "--every-s", "0.05")
    path = records(home)[0]
    monkeypatch.setenv("SHOAL_CHAIN_KEY", NODE_KEY.hex())
    disputed = run(home, "check", str(path), "--node", "--dispute")
    assert disputed.exit_code == 1
    assert "earned" in disputed.output and "dispute: 0x" in disputed.output
    monkeypatch.setenv("SHOAL_CHAIN_KEY", KEY.hex())
    said(home, "resolve", "--falls")
    with closing(SqlLogStore(f"sqlite:///{home}/coordinator/store.sqlite")) as store:
        for key in store.kept(RUN, "epoch."):
            store.drop(RUN, key)  # the coordinator gives in: its records are made anew, from the log
    said(home, "bond", "1000")
    Rpc([anvil.url]).batch([("evm_mine", [])] * 3)
    assert said(home, "settle", "--once", "--every-s", "0.05")["settled"] == 4
    for path in records(home):
        assert said(home, "check", str(path), "--node")["wrong"] == []
    Rpc([anvil.url]).batch([("evm_increaseTime", [3600]), ("evm_mine", [])])
    said(home, "claim", str(records(home)[-1]))


def doubled(amounts: dict[str, int]) -> dict[str, int]:
    return {address: amount * 2 for address, amount in amounts.items()}


def forge(home: Path, *lies: Callable[[dict[str, int]], dict[str, int]]) -> None:
    """The first records as a dishonest coordinator would write them: each lie makes one of the true one."""
    config = read_config(home)
    terms = config.jobs[RUN]
    with closing(SqlLogStore(f"sqlite:///{home}/coordinator/store.sqlite")) as store:
        pages = Bookkeeper(store, RUN, SPEC, COORDINATOR).catch_up()
        found = boundaries(pages, terms.rounds_per_epoch, over=False)
        for lie, boundary in zip(lies, found, strict=False):
            right = make_record(RUN, terms, boundary, kept_payouts(store, RUN), None)
            amounts = lie(right.amounts)
            promised = {node: amounts[right.addresses[node]] for node in right.promised}
            keep_record(store, msgspec.structs.replace(right, amounts=amounts, promised=promised))


def test_what_people_get_wrong_is_refused_with_a_next_step(
    home: Path, anvil: Anvil, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code(run(home, "settle")) == "SH-CHAIN-11"
    assert code(run(home, "deploy", "--chain", "nowhere")) == "SH-CHAIN-11"
    assert code(run(home, "deploy", "--chain", "monad", "--url", anvil.url)) == "SH-CHAIN-05"
    assert code(run(home, "deploy", "--url", "http://127.0.0.1:9")) == "SH-CHAIN-04"
    assert code(run(home, "deploy", "--url", "ftp://somewhere")) == "SH-CHAIN-04"
    assert code(run(home, "payout", "0x1234")) == "SH-CHAIN-03"
    wrong = address_of(0)[:-1] + ("0" if address_of(0)[-1] != "0" else "1")
    assert code(run(home, "payout", wrong)) == "SH-CHAIN-03"
    assert code(run(home, "pay", "shoalpay1-nonsense")) == "SH-CHAIN-03"
    said(home, "deploy", "--url", anvil.url)
    assert code(run(home, "settle", "--once")) == "SH-CHAIN-11"
    Rpc([anvil.url]).call("anvil_setBalance", Account(KEY).address, "0x0")
    assert code(run(home, "job")) in ("SH-CHAIN-08", "SH-CHAIN-10")
    monkeypatch.delenv("SHOAL_CHAIN_KEY")
    assert code(run(home, "deploy", "--url", anvil.url)) == "SH-CHAIN-02"
    monkeypatch.setenv("SHOAL_CHAIN_KEY", "not a key")
    failed = run(home, "deploy", "--url", anvil.url)
    assert code(failed) == "SH-CHAIN-02" and "not a key" not in str(failed.exception)
    shutil.copy(home / "chain.json", home / "copy.json")
    config = json.loads((home / "chain.json").read_text())
    (home / "chain.json").write_text(json.dumps({**config, "rewards": "0x" + "12" * 20}))
    assert code(run(home, "status")) in ("SH-CHAIN-07", "SH-CHAIN-11")
    (home / "chain.json").write_text("{")
    assert code(run(home, "status")) == "SH-CHAIN-11"


def test_a_damaged_record_is_refused(home: Path, anvil: Anvil) -> None:
    founded(home, anvil.url)
    for text in ("{", "[]", '{"run": 1}', json.dumps({"amounts": {}})):
        path = home / "record.json"
        path.write_text(text)
        assert code(run(home, "claim", str(path))) == "SH-CHAIN-11"
