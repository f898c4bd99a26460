"""The demo's local chain: nodes stake before they train, the run's credit is settled after it, and anyone claims.

In flow the demo's folder and the names of its nodes; out flow lines with every transaction. Invariant: what is shown
was mined: every hash is of a transaction on the chain, and every balance is read from it; the chain ends with the demo.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from shoal.apps.chain_office import Desk, credit_of, settlement_of
from shoal.apps.home import find_home, make_folder
from shoal.apps.option_groups import StorePlace
from shoal.base.ids import NodeId, RunId
from shoal.chain.anvil import Anvil, fetch_anvil, find_anvil
from shoal.chain.config import ChainConfig, JobTerms, write_config
from shoal.chain.contracts import shipped
from shoal.chain.deploying import NewJob, create_job, deploy, done
from shoal.chain.job import RewardsView
from shoal.chain.keccak import keccak256
from shoal.chain.modes import MODES
from shoal.chain.outbox import Outgoing, SqlOutbox
from shoal.chain.payouts import keep_payout, state_payout
from shoal.chain.presets import chain_called
from shoal.chain.rpc import Rpc
from shoal.chain.sender import Call, Sender
from shoal.chain.service import run_settlement
from shoal.chain.signing import Account
from shoal.credit.spec import show_credits
from shoal.worlds.real.keys import load_or_create_identity

COIN = 10**18
STAKE = COIN // 100
WEI_PER_MICRO = 10**9
BUDGET = 10 * COIN
BLOCK_S = 0.4


class ChainDemo:
    """Use it in a `with` statement around the demo."""

    def __init__(self, folder: Path, nodes: list[str], say: Callable[[str], None]) -> None:
        self._folder, self._nodes, self._say = folder, nodes, say
        root = find_home().root
        self._anvil = Anvil(find_anvil(root) or fetch_anvil(root, say), block_s=BLOCK_S)
        self._home = find_home(folder / "coordinator")
        self._config: ChainConfig | None = None

    def __enter__(self) -> ChainDemo:
        self._anvil.start()
        self._chain = msgspec.structs.replace(chain_called("anvil"), urls=(self._anvil.url,))
        self._rpc = Rpc([self._anvil.url])
        make_folder(self._home.coordinator)
        self._outbox = SqlOutbox(self._home.store_url)
        self._wallet = self._account("coordinator")
        self._sender = Sender(self._rpc, self._chain, self._wallet, self._outbox)
        return self

    def __exit__(self, *_: object) -> None:
        self._outbox.close()
        self._rpc.close()
        self._anvil.stop()

    def _account(self, name: str) -> Account:
        """A wallet of the demo's own, with money that the local chain gives."""
        path = self._folder / name
        key = load_or_create_identity(path / "wallet")
        account = Account(keccak256(key.secret))
        self._rpc.call("anvil_setBalance", account.address, hex(100 * COIN))
        return account

    def stake(self) -> None:
        """Deploy, and register every node with a stake."""
        self._say(f"a local chain at {self._anvil.url}, a block every {BLOCK_S} s")
        config = deploy(self._sender, self._outbox, self._wallet.address, stake=STAKE, bond=STAKE // 10)
        self._say(f"  NodeRegistry     {config.registry}\n  TrainingRewards  {config.rewards}")
        registry = shipped("NodeRegistry")
        for name in self._nodes:
            identity = load_or_create_identity(find_home(self._folder / name).node_key)
            data = registry["registerNode"].call(keccak256(identity.public), 0)
            sender = Sender(self._rpc, self._chain, self._account(name), self._outbox)
            call = Call(key="register", to=config.registry, data=data, interface=registry, value=STAKE)
            self._tell(f"{name} stakes {STAKE / COIN:g}", done(sender, self._outbox, call))
        self._config = config

    def settle(self) -> None:
        """Create the run's job, settle every epoch, claim for everybody, and compare with the log."""
        assert self._config is not None
        credit = credit_of(StorePlace(home=self._home.root), "")
        run = credit.account.run
        config, made = create_job(
            self._sender,
            self._outbox,
            self._config,
            run,
            JobTerms(job=0, wei_per_micro=WEI_PER_MICRO, rounds_per_epoch=5),
            NewJob(
                mode=MODES["roots"].number,
                coordinator=self._wallet.address,
                arbiter=self._wallet.address,
                amount=BUDGET,
                epoch_cap=BUDGET,
            ),
        )
        write_config(self._home.root, config)
        self._tell(f"job {config.jobs[run].job} with {BUDGET / COIN:g} in escrow", made)
        addresses = self._state_addresses(credit.account.run)
        settlement = settlement_of(
            Desk(home=self._home, outbox=self._outbox, sender=self._sender), config, credit
        )
        run_settlement(
            settlement, every_s=0.1, until_done=True, stop=threading.Event(), tell=lambda line: None
        )
        for item in self._outbox.find(self._wallet.address, "root."):
            epoch = int(item.key.split(".")[2])
            paid = len(settlement.records[epoch - 1].amounts)
            self._tell(f"epoch {epoch}: a root for {paid} nodes", item)
        record = settlement.records[-1]
        before = {address: self._balance(address) for address in record.amounts}
        data = MODES["roots"].claim(record)
        call = Call(key="claim", to=config.rewards, data=data, interface=shipped("TrainingRewards"))
        claimed = done(
            Sender(self._rpc, self._chain, self._account("anyone"), self._outbox), self._outbox, call
        )
        self._tell(f"anyone claims for all {len(record.amounts)}", claimed)
        self._compare(config, addresses, before)

    def _state_addresses(self, run: RunId) -> dict[NodeId, str]:
        """Every node says, with its own key, where it wants its pay; so does the coordinator."""
        stated = {}
        for name in self._nodes:
            identity = load_or_create_identity(find_home(self._folder / name).node_key)
            address = self._account(name).address
            keep_payout(self._outbox, run, state_payout(identity, run, address))
            stated[identity.node] = address
        identity = load_or_create_identity(self._home.coordinator_key)
        keep_payout(self._outbox, run, state_payout(identity, run, self._wallet.address))
        stated[identity.node] = self._wallet.address
        return stated

    def _compare(self, config: ChainConfig, addresses: dict[NodeId, str], before: dict[str, int]) -> None:
        account = credit_of(StorePlace(home=self._home.root), "").account
        view = RewardsView(self._rpc, config.rewards)
        job = config.jobs[account.run].job
        self._say(f"  {'node':<14} {'credits by the log':>20} {'paid on the chain':>20}")
        for node, micro in sorted(account.balances.items()):
            paid = int(view.ask("paidTo", job, addresses[node]))
            gained = self._balance(addresses[node]) - before[addresses[node]]
            same = "equal" if paid == gained == micro * WEI_PER_MICRO else "DIFFERENT"
            name = account.names.get(node, "coordinator")
            self._say(
                f"  {name:<14} {show_credits(micro):>20} {show_credits(paid // WEI_PER_MICRO):>20}  {same}"
            )

    def _balance(self, address: str) -> int:
        return int(self._rpc.call("eth_getBalance", address, "latest"), 16)

    def _tell(self, what: str, item: Outgoing) -> None:
        self._say(f"  {what:<44} {item.mined_hash}  {item.gas_used:,} gas")
