"""What a coordinator knows of its chain: `chain.json`, and the same checked against the chain itself.

In flow a file and an RPC; out flow a checked configuration. Invariant: before anything is signed, the chain has said by
the contract's own domain (which the chain computes from its id) that it is the one in the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.errors import ShoalError
from shoal.chain.abi import Type, encode
from shoal.chain.contracts import shipped
from shoal.chain.keccak import keccak256
from shoal.chain.presets import Chain
from shoal.chain.rpc import Refused, Rpc
from shoal.chain.signing import read_address

FILE = "chain.json"


class JobTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run's job on the chain."""

    job: int
    wei_per_micro: int
    """What a millionth of a credit is worth in the job's smallest unit."""
    rounds_per_epoch: int = 1
    """How many pages of the ledger make a root."""
    mode: str = "roots"
    """How it pays, see `chain.modes`."""
    token: str = ""
    """The ERC-20 that it pays in; "" for the chain's own coin."""


class ChainConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    chain: Chain
    registry: str
    rewards: str
    genesis: str
    """The hash of the chain's first block, as it was when the contracts were deployed; "" for a local chain, which has
    another whenever it starts."""
    jobs: dict[str, JobTerms] = {}
    """By run."""

    def with_job(self, run: str, terms: JobTerms) -> ChainConfig:
        return msgspec.structs.replace(self, jobs={**self.jobs, run: terms})


def read_config(folder: Path) -> ChainConfig:
    """Raises SH-CHAIN-11 or SH-CHAIN-03."""
    path = folder / FILE
    try:
        config = msgspec.convert(json.loads(path.read_text("utf-8")), ChainConfig)
    except FileNotFoundError:
        raise ShoalError("SH-CHAIN-11", f"there is no {path}", "run `shoal chain deploy` first") from None
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise ShoalError("SH-CHAIN-11", f"{path}: {error}", "mend the file, or deploy again") from None
    tokens = [terms.token for terms in config.jobs.values() if terms.token]
    for address in (config.registry, config.rewards, *tokens):
        read_address(address)
    return config


def write_config(folder: Path, config: ChainConfig) -> None:
    """Replace the file as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{FILE}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(msgspec.to_builtins(config), file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / FILE)


def check_chain(rpc: Rpc, chain: Chain, genesis: str = "") -> str:
    """That the RPC is of this chain; the hash of its first block. Raises SH-CHAIN-05."""
    found = int(rpc.call("eth_chainId"), 16)
    if found != chain.chain_id:
        raise wrong_chain(f"the RPC is of chain {found}, not {chain.chain_id} ({chain.name})")
    first: Any = rpc.call("eth_getBlockByNumber", "0x0", False)
    known = str(first["hash"]) if isinstance(first, dict) and "hash" in first else ""
    if genesis and known != genesis:
        raise wrong_chain(f"the RPC says chain {found}, but its first block is another than before")
    return known


def check_contract(rpc: Rpc, config: ChainConfig) -> None:
    """That the contract is there, on this chain. Raises SH-CHAIN-05 or SH-CHAIN-07."""
    function = shipped("TrainingRewards")["domainSeparator"]
    try:
        answer = rpc.call("eth_call", {"to": config.rewards, "data": "0x" + function.call().hex()}, "latest")
    except Refused:
        answer = "0x"
    if len(answer) != 2 + 64:
        raise ShoalError(
            "SH-CHAIN-07",
            f"there is no TrainingRewards at {config.rewards} on {config.chain.name}",
            "deploy with `shoal chain deploy`, or check chain.json",
        )
    if bytes.fromhex(answer[2:]) != domain_of(config.chain.chain_id, config.rewards):
        raise wrong_chain("the contract there computes with another chain id: this RPC is not what it says")


def domain_of(chain_id: int, contract: str) -> bytes:
    """EIP-712's separator of TrainingRewards."""
    kind = keccak256(b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")
    names = ("bytes32", "bytes32", "bytes32", "uint256", "address")
    values = (kind, keccak256(b"ShoalTrainingRewards"), keccak256(b"1"), chain_id, contract)
    return keccak256(encode([Type(name) for name in names], values))


def wrong_chain(what: str) -> ShoalError:
    return ShoalError("SH-CHAIN-05", what, "nothing was sent; check the chain's name and the RPC URLs")
