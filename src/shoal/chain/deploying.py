"""Putting the contracts and a run's job on a chain.

In flow a chain, a wallet and terms; out flow a configuration and a job. Invariant: every transaction goes through the
outbox under a key of its own, so that what was begun before a crash is finished, not done twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.chain.config import ChainConfig, JobTerms, check_chain
from shoal.chain.contracts import erc20, shipped
from shoal.chain.outbox import FAILED, FINAL, LOST, MINED, Outgoing, SqlOutbox
from shoal.chain.sender import Call, Sender
from shoal.chain.signing import to_checksum

DAY = 86_400
PATIENCE_S = 300.0
LOOK_S = 0.05
RING = 64
"""Roots that the contract keeps."""
NO_TOKEN = "0x" + "0" * 40


def deploy(sender: Sender, outbox: SqlOutbox, arbiter: str, *, stake: int, bond: int) -> ChainConfig:
    """Both contracts. Raises what `Sender` does."""
    genesis = check_chain(sender.rpc, sender.chain)
    if sender.chain.is_local and sender.nonce() == 0:
        outbox.forget(sender.account.address)  # It was for a local chain that is no more.
    registry, rewards = shipped("NodeRegistry"), shipped("TrainingRewards")
    mark = sender.chain.chain_id
    data = registry.deployment(stake, bond, 7 * DAY, DAY, 3 * DAY, arbiter, arbiter)
    first = done(sender, outbox, Call(key=f"deploy.{mark}.registry", to="", data=data, interface=registry))
    at = created_at(sender, first)
    data = rewards.deployment(at)
    second = done(sender, outbox, Call(key=f"deploy.{mark}.rewards", to="", data=data, interface=rewards))
    known = "" if sender.chain.is_local else genesis
    return ChainConfig(chain=sender.chain, registry=at, rewards=created_at(sender, second), genesis=known)


def created_at(sender: Sender, item: Outgoing) -> str:
    return to_checksum(sender.rpc.call("eth_getTransactionReceipt", item.mined_hash)["contractAddress"])


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job's terms, in the order in which the contract takes them. Amounts are in the token's smallest unit."""

    mode: int
    coordinator: str
    arbiter: str
    token: str = NO_TOKEN
    amount: int
    epoch_cap: int
    epoch_s: int = 3600
    window_s: int = 0
    resolution_s: int = 0
    claim_period_s: int = 30 * DAY
    quorum_percent: int = 0
    bond: int = 0
    price: int = 0

    def call(self) -> bytes:
        """What `createJob` is called with."""
        return shipped("TrainingRewards")["createJob"].call(
            tuple(getattr(self, one.name) for one in fields(self))
        )


def create_job(
    sender: Sender, outbox: SqlOutbox, config: ChainConfig, run: RunId, terms: JobTerms, new: NewJob
) -> tuple[ChainConfig, Outgoing]:
    """A funded job for a run, and where roots can be disputed its coordinator's bond and a prepared ring. `terms` has
    the job's number 0: the contract gives it. Raises SH-CHAIN-07 where there is no such token."""
    rewards = shipped("TrainingRewards")
    value = new.amount if new.token == NO_TOKEN else 0
    if not value:
        approve(sender, outbox, config, new.token, new.amount, f"approve.{run}")
    call = Call(key=f"job.{run}", to=config.rewards, data=new.call(), interface=rewards, value=value)
    made = done(sender, outbox, call)
    job = int(_event(sender, config, made, "JobCreated")["jobId"])
    mark = f"{config.rewards}.{job}"
    if new.window_s and new.bond:
        deposit = rewards["depositBond"].call(job)
        call = Call(key=f"bond.{mark}", to=config.rewards, data=deposit, interface=rewards, value=new.bond)
        done(sender, outbox, call)
    if new.window_s:
        prepare = rewards["prepareRing"].call(job, RING)
        done(sender, outbox, Call(key=f"ring.{mark}", to=config.rewards, data=prepare, interface=rewards))
    return config.with_job(run, msgspec.structs.replace(terms, job=job)), made


def approve(
    sender: Sender, outbox: SqlOutbox, config: ChainConfig, token: str, amount: int, key: str
) -> Outgoing:
    """Let the contract take so much of a token. Raises SH-CHAIN-07 where there is none."""
    if len(sender.rpc.call("eth_getCode", token, "latest")) <= 2:
        raise ShoalError(
            "SH-CHAIN-07", f"there is no token at {token} on {sender.chain.name}", "check the token's address"
        )
    data = erc20()["approve"].call(config.rewards, amount)
    return done(sender, outbox, Call(key=key, to=token, data=data, interface=erc20()))


def _event(sender: Sender, config: ChainConfig, item: Outgoing, name: str) -> dict[str, Any]:
    receipt = sender.rpc.call("eth_getTransactionReceipt", item.mined_hash)
    events = shipped("TrainingRewards").events
    logs = [log for log in receipt["logs"] if log["address"].lower() == config.rewards.lower()]
    found = [events[log["topics"][0]] for log in logs]
    return next(event.read(log) for event, log in zip(found, logs, strict=True) if event.name == name)


def done(
    sender: Sender, outbox: SqlOutbox, call: Call, clock: Callable[[], float] = time.monotonic
) -> Outgoing:
    """Post a call, or find the one posted before, and follow it until it is mined. Raises SH-CHAIN-10."""
    sender.post([call])
    deadline = clock() + PATIENCE_S
    while True:
        sender.push(clock())
        (item,) = (one for one in outbox.find(sender.account.address, call.key) if one.key == call.key)
        if item.state in (MINED, FINAL) and item.mined_hash:
            _check_status(sender, item, call)
            return item
        if item.state in (FAILED, LOST) or clock() > deadline:
            what = "was refused by the contract" if item.state == FAILED else "was not mined in time"
            raise ShoalError("SH-CHAIN-10", f"{call.key} {what}", "look at the account in an explorer")
        time.sleep(LOOK_S)


def _check_status(sender: Sender, item: Outgoing, call: Call) -> None:
    receipt = sender.rpc.call("eth_getTransactionReceipt", item.mined_hash)
    if receipt is not None and receipt["status"] != "0x1":
        raise ShoalError("SH-CHAIN-10", f"{call.key} was refused by the contract", "see docs/chain.md")
