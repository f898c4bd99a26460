"""A run's log, a store and a chain, put together for tests of the settlement."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path

from shoal.base.ids import RunId
from shoal.chain.config import ChainConfig, JobTerms, write_config
from shoal.chain.deploying import DAY, NewJob, create_job, deploy
from shoal.chain.job import RewardsView
from shoal.chain.keccak import keccak256
from shoal.chain.modes import MODES
from shoal.chain.outbox import SqlOutbox
from shoal.chain.payouts import keep_payout, state_payout
from shoal.chain.presets import Chain, chain_called
from shoal.chain.rpc import Rpc
from shoal.chain.sender import Sender
from shoal.chain.settlement import Settlement
from shoal.chain.signing import Account
from shoal.credit.account import account_of
from shoal.credit.ledger import Bookkeeper
from shoal.credit.spec import CreditSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from credit.stories import paying
from runlog.small_log import COORDINATOR, NODES, RUN

KEY = keccak256(b"a coordinator's wallet in tests")
COIN = 10**18
WEI = 7
SPEC = CreditSpec()


def local_chain(url: str, **changes: object) -> Chain:
    chain = chain_called("anvil")
    fields = {name: getattr(chain, name) for name in chain.__struct_fields__}
    return Chain(**{**fields, "urls": (url,), "block_s": 0.02, **changes})  # type: ignore[arg-type]


def log_of(rounds: int, seed: int = 1) -> list[bytes]:
    """The entries of a run whose rounds are sealed by some of four nodes."""
    chance = random.Random(seed)
    clerk = paying(**SPEC.model_dump())
    clerk.join(*NODES[:4])
    for _ in range(rounds):
        clerk.plan(*NODES[:4])
        clerk.seal(*chance.sample(NODES[:4], chance.randint(1, 4)))
    return clerk.entries


def address_of(place: int) -> str:
    return Account(keccak256(f"payout {place}".encode())).address


@dataclass
class Office:
    """A coordinator's desk for one run."""

    folder: Path
    url: str
    config: ChainConfig
    run: RunId = RUN

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.folder}/coordinator/store.sqlite"

    def settlement(self) -> tuple[Settlement, SqlOutbox]:
        """As a process that has just started would make it."""
        outbox = SqlOutbox(self.store_url)
        sender = Sender(Rpc([self.url]), self.config.chain, Account(KEY), outbox)
        books = Bookkeeper(outbox, self.run, SPEC, COORDINATOR)
        return Settlement(run=self.run, config=self.config, books=books, outbox=outbox, sender=sender), outbox

    def view(self) -> RewardsView:
        return RewardsView(Rpc([self.url]), self.config.rewards)

    def earned(self) -> dict[str, int]:
        """What the log gives every address, in wei."""
        with_log = SqlOutbox(self.store_url)
        balances = account_of(with_log.read(self.run), SPEC).balances
        with_log.close()
        return {
            address_of(place): balances[node.node] * WEI
            for place, node in enumerate(NODES[:4])
            if node.node in balances
        }


def open_office(
    folder: Path,
    url: str,
    entries: list[bytes],
    *,
    window_s: int = 0,
    bond: int = 0,
    mode: str = "roots",
    **changes: object,
) -> Office:
    """Contracts, a job, addresses for everybody, and a log of these entries."""
    chain = local_chain(url, **changes)
    rpc = Rpc([url])
    wallet = Account(KEY)
    rpc.call("anvil_setBalance", wallet.address, hex(1000 * COIN))
    (folder / "coordinator").mkdir(parents=True, exist_ok=True)
    key = folder / "coordinator" / "key"
    key.write_text(COORDINATOR.secret.hex() + "\n")
    key.chmod(0o600)
    outbox = SqlOutbox(f"sqlite:///{folder}/coordinator/store.sqlite")
    sender = Sender(rpc, chain, wallet, outbox)
    config = deploy(sender, outbox, wallet.address, stake=COIN, bond=COIN // 10)
    config, _ = create_job(
        sender,
        outbox,
        config,
        RUN,
        JobTerms(job=0, wei_per_micro=WEI, mode=mode),
        NewJob(
            mode=MODES[mode].number,
            coordinator=wallet.address,
            arbiter=wallet.address,
            amount=COIN,
            epoch_cap=COIN,
            window_s=window_s,
            resolution_s=3 * DAY if window_s else 0,
            bond=bond,
            price=WEI if mode == "units" else 0,
        ),
    )
    write_config(folder, config)
    for place, node in enumerate(NODES[:4]):
        keep_payout(outbox, RUN, state_payout(node, RUN, address_of(place)))
    for position, entry in enumerate(entries):
        outbox.append(RUN, position, entry)
    outbox.close()
    return Office(folder, url, config)
