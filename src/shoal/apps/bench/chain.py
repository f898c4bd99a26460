"""What settling costs: transactions a second, gas, and how soon a sealed round can be claimed.

In flow counts; out flow measurements on a local chain that this starts and ends. Invariant: every transaction that is
counted went through the durable outbox and was mined with success; gas is what receipts say.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shoal.apps.home import find_home
from shoal.apps.progress import Bar, tracked
from shoal.base.errors import ShoalError
from shoal.chain.anvil import Anvil, fetch_anvil, find_anvil
from shoal.chain.config import ChainConfig
from shoal.chain.contracts import shipped
from shoal.chain.deploying import DAY, RING, NewJob, deploy, done
from shoal.chain.job import RewardsView
from shoal.chain.keccak import keccak256
from shoal.chain.merkle import make_tree
from shoal.chain.modes import MODES
from shoal.chain.outbox import FAILED, Outgoing, SqlOutbox
from shoal.chain.presets import chain_called
from shoal.chain.rpc import Rpc
from shoal.chain.sender import Call, Sender
from shoal.chain.signing import Account

COIN = 10**18
BLOCK_S = 0.4
RECORDS = 500
NODES = 1000
WALLETS = 4
EPOCHS_A_DAY = 24
GWEI = 10**9


@dataclass(frozen=True, slots=True)
class Bank:
    """A chain with the contracts, and wallets with money on it."""

    config: ChainConfig
    senders: tuple[Sender, ...]
    outbox: SqlOutbox

    @property
    def first(self) -> Sender:
        return self.senders[0]

    def send(self, key: str, function: str, *values: Any, value: int = 0) -> Outgoing:
        rewards = shipped("TrainingRewards")
        data = rewards[function].call(*values)
        call = Call(key=key, to=self.config.rewards, data=data, interface=rewards, value=value)
        return done(self.first, self.outbox, call)


def measure(transactions: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything, on a fresh local chain."""
    root = find_home().root
    program = find_anvil(root) or fetch_anvil(root, say)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        limit = ("--gas-limit", "300000000")
        chain = stack.enter_context(Anvil(program, block_s=BLOCK_S, options=limit))
        bank = _open(chain.url, folder)
        stack.callback(bank.outbox.close)
        say(f"a local chain with a block every {BLOCK_S} s; gas of every kind of call")
        gas = _gas(bank)
        say(f"{transactions} transactions from one process")
        rate = _throughput(bank, transactions, say)
        say("from a sealed round to a root that pays")
        seal = _seal_to_claimable(bank)
    return {
        "tx_per_s": round(rate, 1),
        "transactions": transactions,
        "gas": gas,
        "seconds_seal_to_claimable": round(seal, 3),
        "block_s": BLOCK_S,
        "a_day_for_1000_nodes": _a_day(gas),
    }


def _open(url: str, folder: Path) -> Bank:
    chain = msgspec.structs.replace(chain_called("anvil"), urls=(url,), block_s=BLOCK_S, confirmations=1)
    rpc = Rpc([url], timeout_s=60)
    outbox = SqlOutbox(f"sqlite:///{folder}/store.sqlite")
    accounts = [Account(keccak256(f"bench {n}".encode())) for n in range(WALLETS)]
    for account in accounts:
        rpc.call("anvil_setBalance", account.address, hex(10**6 * COIN))
    senders = tuple(Sender(rpc, chain, account, outbox) for account in accounts)
    config = deploy(senders[0], outbox, accounts[0].address, stake=COIN, bond=COIN)
    return Bank(config, senders, outbox)


def _job(bank: Bank, sender: Sender, name: str, **changes: int) -> int:
    """A funded job in which this wallet is the coordinator."""
    money = {"amount": 10 * COIN, "epoch_cap": 10 * COIN}
    terms: dict[str, Any] = {"mode": MODES["roots"].number, **money, **changes}
    new = NewJob(coordinator=sender.account.address, arbiter=bank.first.account.address, **terms)
    data, rewards = new.call(), shipped("TrainingRewards")
    key, to = f"job.{name}", bank.config.rewards
    done(sender, bank.outbox, Call(key=key, to=to, data=data, interface=rewards, value=10 * COIN))
    return int(RewardsView(sender.rpc, to).ask("jobCount"))


def _address(number: int) -> str:
    return "0x" + (10**9 + number).to_bytes(20, "big").hex()


def _gas(bank: Bank) -> dict[str, float]:
    """Gas of each call, and for each node where a call is for many."""
    table = {**_units_gas(bank), **_roots_gas(bank, "root"), **_roots_gas(bank, "root_window", window_s=1)}
    return {name: round(value, 1) for name, value in table.items()}


def _units_gas(bank: Bank) -> dict[str, float]:
    units = _job(bank, bank.first, "units", mode=MODES["units"].number, price=1)
    node = _address(0)
    first = bank.send("u.0", "submitContribution", units, 1, 0, node, 1)
    again = bank.send("u.1", "submitContribution", units, 1, 1, node, 1)
    packed = [bytes.fromhex(_address(n)[2:]) + (1).to_bytes(12, "big") for n in range(RECORDS)]
    batches = [bank.send(f"u.b{n}", "submitContributions", units, 2, 2 + n, packed) for n in range(2)]
    push = bank.send("u.push", "distributePayments", units, [_address(n) for n in range(100)])
    return {
        "record_first": first.gas_used,
        "record_again": again.gas_used,
        "batch_record_first": batches[0].gas_used / RECORDS,
        "batch_record_again": batches[1].gas_used / RECORDS,
        "push_payment": push.gas_used / 100,
    }


def _roots_gas(bank: Bank, name: str, window_s: int = 0) -> dict[str, float]:
    """The roots of 1,000 nodes: into slots that were never used, used again, and prepared; and claims by the last."""
    resolution_s = DAY if window_s else 0
    plain, prepared = (
        _job(bank, bank.first, f"{name}.{kind}", window_s=window_s, resolution_s=resolution_s)
        for kind in ("plain", "prepared")
    )
    ring = bank.send(f"{name}.ring", "prepareRing", prepared, RING)
    early = [_root(bank, prepared, epoch) for epoch in (1, 2)][-1].gas_used
    sent = [_root(bank, plain, epoch) for epoch in tracked(range(1, RING + 3), "roots")]
    table: dict[str, float] = {
        f"{name}_first_64": sent[1].gas_used,
        f"{name}_later": sent[-1].gas_used,
        f"{name}_prepared": early,
        f"{name}_per_node_first_64": sent[1].gas_used / NODES,
        f"{name}_per_node_later": sent[-1].gas_used / NODES,
        f"{name}_per_node_prepared": early / NODES,
        f"{name}_ring": ring.gas_used,
    }
    return table if window_s else {**table, **_claims_gas(bank, plain, RING + 2)}


def _claims_gas(bank: Bank, job: int, epoch: int) -> dict[str, float]:
    amounts = _amounts(epoch)
    tree, node = make_tree(job, amounts), _address(0)
    one = bank.send("r.claim", "claim", job, epoch, node, amounts[node], tree.proof(node))
    many = [(_address(n), amounts[_address(n)], tree.proof(_address(n))) for n in range(1, 51)]
    claims = bank.send("r.claims", "claimMany", job, epoch, many)
    return {"claim": one.gas_used, "claim_in_50": claims.gas_used / 50}


def _amounts(epoch: int) -> dict[str, int]:
    return {_address(n): epoch * (n + 1) for n in range(NODES)}


def _root(bank: Bank, job: int, epoch: int) -> Outgoing:
    # One after the other, each mined at once: their gas is what is measured here.
    rewards, amounts = shipped("TrainingRewards"), _amounts(epoch)
    root = make_tree(job, amounts).root
    data = rewards["submitEpochRoot"].call(job, epoch, root, sum(amounts.values()), keccak256(root))
    call = Call(key=f"r.{job}.{epoch}", to=bank.config.rewards, data=data, interface=rewards)
    bank.first.post([call])
    bank.first.push(time.monotonic())
    bank.first.rpc.call("evm_mine")
    return done(bank.first, bank.outbox, call)


def _throughput(bank: Bank, count: int, say: Callable[[str], None]) -> float:
    """Contributions, a transaction each, from several wallets of this one process, stored, sent and mined."""
    units = MODES["units"].number
    jobs = {
        sender.account.address: _job(bank, sender, "throughput", mode=units, price=1)
        for sender in bank.senders
    }
    rewards = shipped("TrainingRewards")
    record = rewards["submitContribution"]
    each = count // len(bank.senders)
    began = time.perf_counter()
    for sender in bank.senders:
        job = jobs[sender.account.address]
        calls = [
            Call(
                key=f"tx.{job}.{n}",
                to=bank.config.rewards,
                data=record.call(job, 1, n, _address(n % NODES), 1),
                interface=rewards,
                gas=100_000,
            )
            for n in range(each)
        ]
        sender.post(calls)
        sender.push(time.monotonic())
    busy = list(bank.senders)
    with Bar() as bar:
        while busy:
            for sender in busy:
                if any(item.state == FAILED for item in sender.push(time.monotonic())):
                    raise ShoalError("SH-CHAIN-10", "a transaction of the benchmark failed", "report this")
            left = {sender: len(bank.outbox.under_way(sender.account.address)) for sender in busy}
            busy = [sender for sender in busy if left[sender]]
            bar.at(each * len(bank.senders) - sum(left.values()), each * len(bank.senders), "transactions")
    took = time.perf_counter() - began
    say(f"{each * len(bank.senders)} stored, sent and mined in {took:.1f} s")
    return each * len(bank.senders) / took


def _seal_to_claimable(bank: Bank) -> float:
    """Amounts known -> tree -> signed and stored -> sent -> mined -> the contract says that it pays."""
    job = _job(bank, bank.first, "seal")
    rewards = shipped("TrainingRewards")
    began = time.perf_counter()
    amounts = {_address(n): n + 1 for n in range(NODES)}
    root = make_tree(job, amounts).root
    bank.send("seal.root", "submitEpochRoot", job, 1, root, sum(amounts.values()), keccak256(root))
    request = {"to": bank.config.rewards, "data": "0x" + rewards["claimableFrom"].call(job, 1).hex()}
    while not int(bank.first.rpc.call("eth_call", request, "latest")[2:66], 16):
        time.sleep(0.01)
    return time.perf_counter() - began


def _a_day(gas: dict[str, float]) -> dict[str, float]:
    """1,000 nodes, a root every hour, and one claim of each node a day, in batches of 50."""
    whole = EPOCHS_A_DAY * gas["root_later"] + NODES * gas["claim_in_50"]
    return {
        "gas": round(whole),
        "coin_at_1_gwei": whole * GWEI / COIN,
        "coin_at_50_gwei": 50 * whole * GWEI / COIN,
    }
