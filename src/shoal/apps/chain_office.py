"""A coordinator's or a node's desk for the chain: home, store, wallet, RPC and log, opened together.

In flow options of a command; out flow the pieces that `shoal.chain` is made of. Invariant: the wallet's key comes from
the environment or a keystore and goes nowhere; an RPC is checked to be of the right chain before anything is signed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import msgspec

from shoal.apps.chain_options import ChainPlace, JobOptions, Wallet
from shoal.apps.credit_reading import FoundCredit, read_credit
from shoal.apps.home import Home, find_home, make_folder
from shoal.apps.option_groups import StorePlace, say
from shoal.apps.progress import Bar
from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.chain.config import ChainConfig, JobTerms, check_chain, check_contract, read_config
from shoal.chain.contracts import shipped
from shoal.chain.deploying import DAY, NO_TOKEN, NewJob, done
from shoal.chain.epochs import EpochRecord, kept_records
from shoal.chain.job import RewardsView
from shoal.chain.keys import load_account
from shoal.chain.modes import mode_called
from shoal.chain.outbox import Outgoing, SqlOutbox
from shoal.chain.presets import Chain, chain_called
from shoal.chain.rpc import Rpc
from shoal.chain.sender import Call, Sender
from shoal.chain.settlement import Settlement
from shoal.chain.signing import read_address
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
def open_desk(wallet: Wallet, chain: Chain) -> Iterator[Desk]:
    """The wallet and its outbox. Raises SH-CHAIN-01, -02 or -11."""
    where = find_home(wallet.home)
    make_folder(where.coordinator)
    account = load_account(wallet.keystore)
    rpc = Rpc(chain.urls)
    outbox = SqlOutbox(wallet.store or where.store_url)
    try:
        yield Desk(home=where, outbox=outbox, sender=Sender(rpc, chain, account, outbox, reached))
    finally:
        outbox.close()
        rpc.close()


def config_of(place: StorePlace) -> ChainConfig:
    """`chain.json`, with other URLs if some are given."""
    config = read_config(find_home(place.home).root)
    urls = tuple(place.url or ()) if isinstance(place, ChainPlace) else ()
    if not urls:
        return config
    return msgspec.structs.replace(config, chain=msgspec.structs.replace(config.chain, urls=urls))


def checked_view(rpc: Rpc, config: ChainConfig) -> RewardsView:
    """The contract, having checked the chain. Raises SH-CHAIN-04, -05 or -07."""
    check_chain(rpc, config.chain, config.genesis)
    check_contract(rpc, config)
    return RewardsView(rpc, config.rewards)


def settlement_of(desk: Desk, config: ChainConfig, credit: FoundCredit) -> Settlement:
    account = credit.account
    identity = load_or_create_identity(desk.home.coordinator_key).first
    books = Bookkeeper(desk.outbox, account.run, account.spec, identity, reached)
    return Settlement(
        run=account.run,
        config=config,
        books=books,
        outbox=desk.outbox,
        sender=desk.sender,
        reached=reached,
    )


def records_of(place: StorePlace, config: ChainConfig, run: RunId) -> list[EpochRecord]:
    with closing(SqlOutbox(place.store or find_home(place.home).store_url)) as outbox:
        return kept_records(outbox, run, job_of(config, run).job)


def job_of(config: ChainConfig, run: RunId) -> JobTerms:
    """Raises SH-CHAIN-11."""
    if run not in config.jobs:
        raise ShoalError("SH-CHAIN-11", f"run {run[:12]} has no job on the chain", "run `shoal chain job`")
    return config.jobs[run]


def job_terms(options: JobOptions, wallet: str) -> tuple[JobTerms, NewJob]:
    """A job's terms as they are kept here, and as the contract takes them. Raises SH-CHAIN-03 or -11."""
    mode, window_s = mode_called(options.mode), options.window_s
    token = read_address(options.token) if options.token else ""
    terms = JobTerms(
        job=0,
        wei_per_micro=options.wei_per_micro,
        rounds_per_epoch=options.rounds_per_epoch,
        mode=mode.name,
        token=token,
    )
    new = NewJob(
        mode=mode.number,
        coordinator=wallet,
        arbiter=read_address(options.arbiter) if options.arbiter else wallet,
        token=token or NO_TOKEN,
        amount=options.budget,
        epoch_cap=options.epoch_cap or options.budget,
        epoch_s=options.epoch_s,
        window_s=window_s,
        resolution_s=3 * DAY if window_s else 0,
        quorum_percent=options.quorum_percent,
        bond=options.bond if window_s else 0,
        price=options.wei_per_micro if mode.name == "units" else 0,
    )
    return terms, new


def credit_of(place: StorePlace, run: str, *, node: bool = False) -> FoundCredit:
    return read_credit(place.home, place.store, run, node=node)


def send_once(
    wallet: Wallet, config: ChainConfig, what: str, data: bytes, *, to: str = "", value: int = 0
) -> Outgoing:
    """One transaction of its own, to TrainingRewards unless said otherwise, followed until it is mined."""
    interface = {config.registry: shipped("NodeRegistry")}.get(to, shipped("TrainingRewards"))
    with open_desk(wallet, config.chain) as desk, Bar("waiting for the chain"):
        checked_view(desk.rpc, config)
        key = f"{what}.{secrets.token_hex(8)}"
        call = Call(key=key, to=to or config.rewards, data=data, interface=interface, value=value)
        return done(desk.sender, desk.outbox, call)


def tell_sent(what: str, made: Outgoing, as_json: bool) -> None:
    say({"transaction": made.mined_hash, "gas": made.gas_used}, f"{what}: {made.mined_hash}", as_json)
