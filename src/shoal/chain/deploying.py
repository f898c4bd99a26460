"""Putting the contracts and a run's job on a chain.

In flow a chain, a wallet and terms; out flow a configuration and a job. Invariant: every transaction goes through the
outbox under a key of its own, so that what was begun before a crash is finished, not done twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.ids import RunId
from shoal.chain.config import ChainConfig, JobTerms, check_chain
from shoal.chain.contracts import shipped
from shoal.chain.outbox import FAILED, FINAL, LOST, MINED, Outgoing, SqlOutbox
from shoal.chain.sender import Call, Sender
from shoal.chain.signing import to_checksum

DAY = 86_400
PATIENCE_S = 300.0
LOOK_S = 0.05
ROOTS = 2
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


def create_job(
    sender: Sender,
    outbox: SqlOutbox,
    config: ChainConfig,
    run: RunId,
    *,
    wei_per_micro: int,
    budget: int,
    epoch_cap: int,
    epoch_s: int,
    window_s: int,
    bond: int,
    arbiter: str,
    quorum_percent: int,
    rounds_per_epoch: int,
) -> tuple[ChainConfig, Outgoing]:
    """A job in the chain's own coin, paid by roots, and its coordinator's bond where roots can be disputed."""
    rewards = shipped("TrainingRewards")
    terms = (
        ROOTS,
        sender.account.address,
        arbiter,
        NO_TOKEN,
        budget,
        epoch_cap,
        epoch_s,
        window_s,
        3 * DAY if window_s else 0,
        30 * DAY,
        quorum_percent,
        bond if window_s else 0,
        0,
    )
    data = rewards["createJob"].call(terms)
    call = Call(key=f"job.{run}", to=config.rewards, data=data, interface=rewards, value=budget)
    made = done(sender, outbox, call)
    job = int(_event(sender, config, made, "JobCreated")["jobId"])
    if window_s and bond:
        deposit = rewards["depositBond"].call(job)
        key = f"bond.{config.rewards}.{job}"
        done(sender, outbox, Call(key=key, to=config.rewards, data=deposit, interface=rewards, value=bond))
    job_terms = JobTerms(job=job, wei_per_micro=wei_per_micro, rounds_per_epoch=rounds_per_epoch)
    return config.with_job(run, job_terms), made


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
