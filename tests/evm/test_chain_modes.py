"""The other ways to pay, tokens, and what decides a dispute: by the commands, on a real chain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.chain.anvil import Anvil
from shoal.chain.config import read_config
from shoal.chain.keccak import keccak256
from shoal.chain.rpc import Rpc
from shoal.chain.signing import Account

from .commands import NODE_KEY, code, founded, records, run, said
from .evm import Deployed, Evm, for_tests
from .settling import COIN, KEY, RUN, Office
from .test_chain_command import doubled, forge

STAKERS = [keccak256(f"staker {number}".encode()) for number in range(3)]


def earned(home: Path, url: str) -> dict[str, int]:
    return Office(home, url, None).earned()  # type: ignore[arg-type]


def balances(url: str, addresses: dict[str, int]) -> dict[str, int]:
    rpc = Rpc([url])
    return {address: int(rpc.call("eth_getBalance", address, "latest"), 16) for address in addresses}


@pytest.mark.parametrize("mode", ["units", "vouchers"])
def test_a_job_in_another_mode_pays_what_the_log_gives(home: Path, anvil: Anvil, mode: str) -> None:
    founded(home, anvil.url, "--mode", mode)
    done = said(home, "settle", "--once", "--every-s", "0.05")
    assert (done["settled"], done["epochs"]) == (4, 4)
    last = records(home)[-1]
    assert said(home, "check", str(last), "--node")["wrong"] == []
    said(home, "claim", str(last))
    owed = earned(home, anvil.url)
    assert balances(anvil.url, owed) == owed
    said(home, "claim", str(last))  # again pays nobody
    assert balances(anvil.url, owed) == owed
    status = said(home, "status")
    assert status["paid"] == status["committed"] == sum(owed.values())
    assert status["epoch"] == (4 if mode == "units" else 0)


def test_vouchers_that_were_altered_pay_nobody(home: Path, anvil: Anvil) -> None:
    founded(home, anvil.url, "--mode", "vouchers")
    said(home, "settle", "--once", "--every-s", "0.05")
    last = records(home)[-1]
    fields = json.loads(last.read_text())
    address = next(iter(fields["amounts"]))
    last.write_text(json.dumps({**fields, "amounts": {**fields["amounts"], address: 10**15}}))
    assert code(run(home, "claim", str(last))) == "SH-CHAIN-10"
    last.write_text(json.dumps({**fields, "vouchers": {}}))
    assert code(run(home, "claim", str(last))) == "SH-CHAIN-11"


def token_for(url: str, owner: str) -> Deployed:
    """A token, of which this wallet has all."""
    evm = Evm(url)
    token = evm.deploy(for_tests("TestToken"), 0)
    token.send(evm.accounts[0], "transfer", owner, 10**30)
    return token


def test_a_job_in_a_token_is_funded_and_pays_in_it(home: Path, anvil: Anvil) -> None:
    token = token_for(anvil.url, Account(KEY).address)
    founded(home, anvil.url, "--token", token.address, "--budget", str(COIN))
    said(home, "settle", "--once", "--every-s", "0.05")
    said(home, "claim", str(records(home)[-1]))
    owed = earned(home, anvil.url)
    assert {address: token.ask("balanceOf", address) for address in owed} == owed
    assert sum(balances(anvil.url, owed).values()) == 0
    said(home, "fund", "500")
    assert said(home, "status")["budget"] == COIN + 500
    assert read_config(home).jobs[RUN].token.lower() == token.address.lower()


def test_what_is_no_mode_and_no_token_is_refused_with_a_next_step(home: Path, anvil: Anvil) -> None:
    said(home, "deploy", "--url", anvil.url)
    assert code(run(home, "job", "--mode", "gifts")) == "SH-CHAIN-11"
    assert code(run(home, "job", "--token", "0x12")) == "SH-CHAIN-03"
    assert code(run(home, "job", "--token", "0x" + "12" * 20)) == "SH-CHAIN-07"


def disputed(home: Path, anvil: Anvil, monkeypatch: pytest.MonkeyPatch, *options: str) -> Path:
    """A wrong first root on the chain, disputed by a node: the record of it."""
    founded(home, anvil.url, "--window-s", "3600", "--bond", "1000", *options)
    forge(home, doubled)
    said(home, "settle", "--once", "--every-s", "0.05")
    path = records(home)[0]
    monkeypatch.setenv("SHOAL_CHAIN_KEY", NODE_KEY.hex())
    assert run(home, "check", str(path), "--node", "--dispute").exit_code == 1
    return path


def test_a_quorum_of_stake_overrules_a_wrong_root_with_the_one_that_its_logs_give(
    home: Path, anvil: Anvil, monkeypatch: pytest.MonkeyPatch
) -> None:
    rpc = Rpc([anvil.url])
    said(home, "deploy", "--url", anvil.url)
    for key in STAKERS:
        rpc.call("anvil_setBalance", Account(key).address, hex(COIN))
        monkeypatch.setenv("SHOAL_CHAIN_KEY", key.hex())
        said(home, "register")
    rpc.batch([("evm_increaseTime", [10]), ("evm_mine", [])])
    monkeypatch.setenv("SHOAL_CHAIN_KEY", KEY.hex())
    path = disputed(home, anvil, monkeypatch, "--quorum-percent", "60")
    right = home / "right.json"
    assert run(home, "redo", str(path), "--out", str(right), "--node").exit_code == 0
    assert code(run(home, "sign", str(path), "--node")) == "SH-CHAIN-11"  # nobody signs for the wrong one
    words = []
    for key in STAKERS[:2]:
        monkeypatch.setenv("SHOAL_CHAIN_KEY", key.hex())
        words.append(run(home, "sign", str(right), "--node").output.strip())
    assert code(run(home, "overrule", str(right), words[0])) == "SH-CHAIN-10"  # a third is no quorum
    assert code(run(home, "overrule", str(right), "0x12")) == "SH-CHAIN-11"
    said(home, "overrule", str(right), *words, words[0])
    said(home, "claim", str(right))  # it stands at once
    amounts = json.loads(right.read_text())["amounts"]
    assert balances(anvil.url, amounts) == amounts
    assert said(home, "check", str(right), "--node")["wrong"] == []
    monkeypatch.setenv("SHOAL_CHAIN_KEY", NODE_KEY.hex())
    before = int(rpc.call("eth_getBalance", Account(NODE_KEY).address, "latest"), 16)
    said(home, "withdraw")
    assert int(rpc.call("eth_getBalance", Account(NODE_KEY).address, "latest"), 16) > before - COIN // 1000


def shifted(amounts: dict[str, int]) -> dict[str, int]:
    """One has nearly nothing any more, and another has it."""
    robbed, robber = sorted(amounts, key=lambda address: amounts[address])[-2:]
    return {**amounts, robbed: 1, robber: amounts[robber] + amounts[robbed] - 1}


def test_leaves_that_shrink_end_a_dispute_by_themselves(
    home: Path, anvil: Anvil, monkeypatch: pytest.MonkeyPatch
) -> None:
    founded(home, anvil.url, "--window-s", "3600", "--bond", "1000")
    forge(home, dict, shifted)
    rpc = Rpc([anvil.url])
    said(home, "settle", "--once", "--every-s", "0.05")
    first, second = records(home)[:2]
    monkeypatch.setenv("SHOAL_CHAIN_KEY", NODE_KEY.hex())
    assert run(home, "check", str(second), "--node", "--dispute").exit_code == 1
    assert code(run(home, "prove", str(first), str(first))) == "SH-CHAIN-11"
    assert code(run(home, "prove", str(second), str(first))) == "SH-CHAIN-10"  # the first may still be wrong
    rpc.batch([("evm_increaseTime", [3700]), ("evm_mine", [])])
    said(home, "prove", str(second), str(first))
    status = said(home, "status")
    assert (status["epoch"], status["bonded"]) == (1, 0)
