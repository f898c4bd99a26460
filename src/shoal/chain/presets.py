"""Chains by name: their ids, their pace, and how they charge.

In flows a name; out flows a frozen value. Invariant: nothing here is secret, and every field may be overridden in
`chain.json`; adding a chain is a line in the table.
"""

from __future__ import annotations

from typing import Any

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


_MONAD = {"pays_limit": True, "priority_fee": 2 * GWEI, "reserve": 10 * COIN}
_ROWS: tuple[tuple[str, int, str, float, int, dict[str, Any]], ...] = (
    ("anvil", LOCAL_ID, "http://127.0.0.1:8545", 0.4, 2, {"priority_fee": GWEI}),
    ("monad", 143, "https://rpc.monad.xyz", 0.3, 4, _MONAD),
    ("monad-testnet", 10143, "https://testnet-rpc.monad.xyz", 0.3, 4, _MONAD),
    ("base", 8453, "https://mainnet.base.org", 2.0, 10, {}),
    ("base-sepolia", 84532, "https://sepolia.base.org", 2.0, 10, {}),
    ("optimism", 10, "https://mainnet.optimism.io", 2.0, 10, {}),
    ("arbitrum", 42161, "https://arb1.arbitrum.io/rpc", 0.25, 20, {}),
)
"""Name, id, RPC, seconds between blocks, confirmations, and what is special."""
CHAINS = {
    name: Chain(
        name=name, chain_id=number, urls=(url,), block_s=block_s, confirmations=confirmations, **special
    )
    for name, number, url, block_s, confirmations, special in _ROWS
}


def chain_called(name: str) -> Chain:
    """Raises SH-CHAIN-11 with the names there are."""
    if name not in CHAINS:
        raise ShoalError("SH-CHAIN-11", f"no chain is called {name!r}", f"use one of: {', '.join(CHAINS)}")
    return CHAINS[name]
