"""What the commands of `shoal chain` have in common: their options.

In flow command lines; out flow groups of options. Invariant: nothing here reads a key or a chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from shoal.apps.option_groups import StorePlace

COIN = 10**18
Urls = Annotated[
    list[str] | None, typer.Option("--url", help="RPC URL instead of chain.json's (repeatable).")
]
Keystore = Annotated[Path | None, typer.Option(help="Keystore file; its password in SHOAL_CHAIN_PASSWORD.")]
RecordFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An epoch's record.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlace(StorePlace):
    """Where things lie, and which RPCs to ask."""

    url: Urls = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wallet(ChainPlace):
    """The same, and the key to sign with."""

    keystore: Keystore = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What a job is agreed on, for good."""

    mode: Annotated[str, typer.Option(help="How it pays: roots, units or vouchers.")] = "roots"
    token: Annotated[str, typer.Option(help="An ERC-20 to pay in (default: the chain's own coin).")] = ""
    budget: Annotated[int, typer.Option(min=1, help="What the job may pay, in wei (or the token's).")] = COIN
    wei_per_micro: Annotated[int, typer.Option(min=1, help="Wei for a millionth of a credit.")] = 10**9
    epoch_cap: Annotated[int, typer.Option(min=0, help="Most for an epoch's time; 0: the budget.")] = 0
    epoch_s: Annotated[int, typer.Option(min=1, help="An epoch's length of time.")] = 3600
    window_s: Annotated[int, typer.Option(min=0, help="How long a root may be disputed.")] = 0
    bond: Annotated[int, typer.Option(min=0, help="Bond of a dispute, in wei.")] = COIN // 1000
    arbiter: Annotated[str, typer.Option(help="Who decides disputes (default: the wallet).")] = ""
    quorum_percent: Annotated[int, typer.Option(min=0, max=100, help="Of all stake, to decide instead.")] = 0
    rounds_per_epoch: Annotated[int, typer.Option(min=1, help="Rounds in each root.")] = 1
