"""A coordinator's or a node's desk for the chain: home, store, wallet, RPC and log, opened together.

In flow options of a command; out flow the pieces that `shoal.chain` is made of. Invariant: the wallet's key comes from
the environment or a keystore and goes nowhere; an RPC is checked to be of the right chain before anything is signed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shoal.apps.credit_reading import FoundCredit, read_credit
from shoal.apps.home import Home, find_home, make_folder
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, RunId
from shoal.chain.config import ChainConfig, check_chain, check_contract, read_config
from shoal.chain.epochs import EpochRecord, kept_records
from shoal.chain.job import RewardsView
from shoal.chain.keys import load_account
from shoal.chain.outbox import SqlOutbox
from shoal.chain.presets import Chain, chain_called
from shoal.chain.rpc import Rpc
from shoal.chain.sender import Sender
from shoal.chain.settlement import Settlement
from shoal.credit.ledger import Bookkeeper
from shoal.worlds.real.failpoints import reached
from shoal.worlds.real.keys import load_or_create_identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Everything a command needs to act on the chain."""

    home: Home
    outbox: SqlOutbox
    sender: Sender

    @property
    def rpc(self) -> Rpc:
        return self.sender.rpc


def named_chain(name: str, urls: list[str]) -> Chain:
    """A preset, with other URLs if some are given."""
    chain = chain_called(name)
    return msgspec.structs.replace(chain, urls=tuple(urls)) if urls else chain


@contextmanager
def open_desk(
    home: Path | None, chain: Chain, keystore: Path | None, store: str | None = None
) -> Iterator[Desk]:
    """The wallet and its outbox. Raises SH-CHAIN-01, -02 or -11."""
    where = find_home(home)
    make_folder(where.coordinator)
    account = load_account(keystore)
    rpc = Rpc(chain.urls)
    outbox = SqlOutbox(store or where.store_url)
    try:
        yield Desk(home=where, outbox=outbox, sender=Sender(rpc, chain, account, outbox, reached))
    finally:
        outbox.close()
        rpc.close()


def config_of(home: Path | None, urls: list[str]) -> ChainConfig:
    """`chain.json`, with other URLs if some are given."""
    config = read_config(find_home(home).root)
    if not urls:
        return config
    return msgspec.structs.replace(config, chain=msgspec.structs.replace(config.chain, urls=tuple(urls)))


def checked_view(rpc: Rpc, config: ChainConfig) -> RewardsView:
    """The contract, having checked the chain. Raises SH-CHAIN-04, -05 or -07."""
    check_chain(rpc, config.chain, config.genesis)
    check_contract(rpc, config)
    return RewardsView(rpc, config.rewards)


def settlement_of(desk: Desk, config: ChainConfig, credit: FoundCredit) -> Settlement:
    account = credit.account
    identity = load_or_create_identity(desk.home.coordinator_key)
    books = Bookkeeper(desk.outbox, account.run, account.spec, identity, reached)
    return Settlement(
        run=account.run,
        config=config,
        books=books,
        outbox=desk.outbox,
        sender=desk.sender,
        reached=reached,
    )


def records_of(home: Path | None, store: str | None, config: ChainConfig, run: RunId) -> list[EpochRecord]:
    outbox = SqlOutbox(store or find_home(home).store_url)
    try:
        return kept_records(outbox, run, job_of(config, run))
    finally:
        outbox.close()


def job_of(config: ChainConfig, run: RunId) -> int:
    """Raises SH-CHAIN-11."""
    if run not in config.jobs:
        raise ShoalError("SH-CHAIN-11", f"run {run[:12]} has no job on the chain", "run `shoal chain job`")
    return config.jobs[run].job


def wrong_amounts(record: EpochRecord, credit: FoundCredit) -> list[str]:
    """In words, where a record gives other amounts than the log does."""
    position = record.position
    if position >= len(credit.hashes) or credit.hashes[position] != record.head:
        return [f"it names entry {position} as {record.head[:12]}, which is not in this log"]
    earned: dict[NodeId, int] = {}
    for line in credit.account.lines:
        if line.position <= position:
            earned[line.node] = earned.get(line.node, 0) + line.micro * record.wei_per_micro
    found = [
        f"{node[:12]} has {record.promised.get(node, 0)}, and earned {earned.get(node, 0)}"
        for node in sorted({*record.promised, *(n for n in earned if n in record.addresses)})
        if record.promised.get(node, 0) != earned.get(node, 0)
    ]
    if record.total != sum(record.promised.values()):
        found.append(f"its leaves come to {record.total}, its nodes to {sum(record.promised.values())}")
    return found


def credit_of(home: Path | None, store: str | None, run: str, *, node: bool = False) -> FoundCredit:
    return read_credit(home, store, run, node=node)
