"""Chains by name: their ids, their pace, and how they charge.

In flows a name; out flows a frozen value. Invariant: nothing here is secret, and every field may be overridden in
`chain.json`; adding a chain is a line in the table.
"""

from __future__ import annotations

import msgspec

from shoal.base.errors import ShoalError
from shoal.chain.anvil import CHAIN_ID as LOCAL_ID

GWEI = 10**9
COIN = 10**18


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    chain_id: int
    urls: tuple[str, ...]
    block_s: float
    confirmations: int
    """Blocks after which a transaction is not looked after any more. (Should it vanish all the same, the contract's
    state shows it, and the same bytes go out again.)"""
    pays_limit: bool = False
    """The whole gas limit is paid for, used or not (Monad): limits are cut close."""
    priority_fee: int = GWEI // 100
    """What is offered for being included, in wei, where the chain asks for nothing else."""
    reserve: int = 0
    """What an account must keep for transactions under way, in wei."""

    @property
    def is_local(self) -> bool:
        return self.chain_id == LOCAL_ID

    @property
    def gas_margin_percent(self) -> int:
        return 8 if self.pays_limit else 25


CHAINS = {
    chain.name: chain
    for chain in (
        Chain(
            name="anvil",
            chain_id=LOCAL_ID,
            urls=("http://127.0.0.1:8545",),
            block_s=0.4,
            confirmations=2,
            priority_fee=GWEI,
        ),
        Chain(
            name="monad",
            chain_id=143,
            urls=("https://rpc.monad.xyz",),
            block_s=0.3,
            confirmations=4,
            pays_limit=True,
            priority_fee=2 * GWEI,
            reserve=10 * COIN,
        ),
        Chain(
            name="monad-testnet",
            chain_id=10143,
            urls=("https://testnet-rpc.monad.xyz",),
            block_s=0.3,
            confirmations=4,
            pays_limit=True,
            priority_fee=2 * GWEI,
            reserve=10 * COIN,
        ),
        Chain(name="base", chain_id=8453, urls=("https://mainnet.base.org",), block_s=2.0, confirmations=10),
        Chain(
            name="base-sepolia",
            chain_id=84532,
            urls=("https://sepolia.base.org",),
            block_s=2.0,
            confirmations=10,
        ),
        Chain(
            name="optimism",
            chain_id=10,
            urls=("https://mainnet.optimism.io",),
            block_s=2.0,
            confirmations=10,
        ),
        Chain(
            name="arbitrum",
            chain_id=42161,
            urls=("https://arb1.arbitrum.io/rpc",),
            block_s=0.25,
            confirmations=20,
        ),
    )
}


def chain_called(name: str) -> Chain:
    """Raises SH-CHAIN-11 with the names there are."""
    if name not in CHAINS:
        raise ShoalError("SH-CHAIN-11", f"no chain is called {name!r}", f"use one of: {', '.join(CHAINS)}")
    return CHAINS[name]
