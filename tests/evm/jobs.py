"""Contracts and people for tests of the contracts, and what a job's terms are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.chain.abi import Type, encode
from shoal.chain.keccak import keccak256
from shoal.chain.merkle import Tree, make_tree
from shoal.chain.signing import Account, typed_digest

from .evm import COIN, DAY, NOBODY, REGISTRY, REWARDS, Deployed, Evm, for_tests

UNITS, ROOTS, VOUCHERS = 1, 2, 3
BOND = COIN // 10
STAKE = COIN
TERMS = {
    "mode": ROOTS,
    "coordinator": "",
    "arbiter": "",
    "token": NOBODY,
    "amount": 0,
    "epochCap": 1000,
    "epochSeconds": 1000,
    "window": 0,
    "resolution": 0,
    "claimPeriod": DAY,
    "quorumPercent": 0,
    "bond": 0,
    "price": 0,
}
WITH_WINDOW = {"window": 500, "resolution": 2000, "bond": BOND}
JOB = (
    "committed",
    "epoch",
    "window",
    "mode",
    "swept",
    "budget",
    "epochCap",
    "coordinator",
    "createdAt",
    "epochSeconds",
    "quorumPercent",
    "paid",
    "price",
    "owner",
    "closedAt",
    "claimPeriod",
    "token",
    "resolution",
    "arbiter",
    "bond",
    "bonded",
)
KEYS = [keccak256(f"test staker {n}".encode()) for n in range(6)]


@dataclass
class World:
    evm: Evm
    registry: Deployed
    rewards: Deployed
    owner: str
    coordinator: str
    arbiter: str
    treasury: str
    nodes: list[str]
    stranger: str

    def create(self, funds: int = 10_000, **terms: Any) -> int:
        """A job, funded in the chain's own coin, or in a token that the owner has."""
        whole = {**TERMS, "coordinator": self.coordinator, "arbiter": self.arbiter, **terms}
        value = funds if whole["token"] == NOBODY else 0
        whole["amount"] = funds
        events = self.rewards.send(self.owner, "createJob", tuple(whole.values()), value=value)
        return int(dict(events)["JobCreated"]["jobId"])

    def job(self, job: int) -> dict[str, Any]:
        return dict(zip(JOB, self.rewards.ask("getJob", job), strict=True))

    def submit(self, job: int, epoch: int, amounts: dict[str, int], total: int | None = None) -> Tree:
        """A root for these cumulative amounts."""
        tree = make_tree(job, amounts)
        whole = sum(amounts.values()) if total is None else total
        self.rewards.send(self.coordinator, "submitEpochRoot", job, epoch, tree.root, whole, b"\7" * 32)
        return tree

    def claim(self, job: int, epoch: int, tree: Tree, node: str, amount: int) -> None:
        self.rewards.send(self.stranger, "claim", job, epoch, node, amount, tree.proof(node))

    def bond(self, job: int, amount: int = BOND) -> None:
        self.rewards.send(self.coordinator, "depositBond", job, value=amount)

    def dispute(self, job: int, epoch: int, by: str | None = None, value: int = BOND) -> None:
        self.rewards.send(by or self.nodes[0], "disputeEpoch", job, epoch, b"\5" * 32, value=value)

    def domain(self) -> bytes:
        return bytes(self.rewards.ask("domainSeparator"))


def make_world(evm: Evm) -> World:
    people = evm.accounts
    registry = evm.deploy(REGISTRY, STAKE, BOND, 10 * DAY, DAY, 2 * DAY, people[3], people[4])
    rewards = evm.deploy(REWARDS, registry.address)
    return World(
        evm=evm,
        registry=registry,
        rewards=rewards,
        owner=people[1],
        coordinator=people[2],
        arbiter=people[3],
        treasury=people[4],
        nodes=people[5:12],
        stranger=people[12],
    )


def token(evm: Evm, owner: str, spender: str, fee: int = 0) -> Deployed:
    """A token of which the owner has plenty and lets the contract take it."""
    made = evm.deploy(for_tests("TestToken"), fee, by=owner)
    made.send(owner, "approve", spender, 10**30)
    return made


def stakers(world: World, count: int) -> list[Account]:
    """Accounts whose keys the test has, staked, in the order of their addresses."""
    made = sorted((Account(key) for key in KEYS[:count]), key=lambda one: one.address.lower())
    for one in made:
        world.evm.rpc.batch(
            [
                ("anvil_impersonateAccount", [one.address]),
                ("anvil_setBalance", [one.address, hex(100 * COIN)]),
            ]
        )
        world.registry.send(one.address, "registerNode", b"\1" * 32, 0, value=STAKE)
    return made


def sign_root(
    world: World, account: Account, job: int, epoch: int, root: bytes, total: int, data: bytes
) -> bytes:
    kind = keccak256(b"EpochRoot(uint256 jobId,uint64 epoch,bytes32 root,uint128 total,bytes32 dataHash)")
    names = ("bytes32", "uint256", "uint64", "bytes32", "uint128", "bytes32")
    hashed = keccak256(encode([Type(name) for name in names], (kind, job, epoch, root, total, data)))
    return account.sign_bytes(typed_digest(world.domain(), hashed))


def sign_voucher(world: World, account: Account, job: int, node: str, cumulative: int, epoch: int) -> bytes:
    kind = keccak256(b"Voucher(uint256 jobId,address node,uint128 cumulative,uint64 epoch)")
    names = ("bytes32", "uint256", "address", "uint128", "uint64")
    hashed = keccak256(encode([Type(name) for name in names], (kind, job, node, cumulative, epoch)))
    return account.sign_bytes(typed_digest(world.domain(), hashed))
