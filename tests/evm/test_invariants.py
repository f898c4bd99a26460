"""Random lives of jobs and stakes on the EVM: whatever anybody does, in whatever order, the money adds up."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from shoal.chain.merkle import Tree

from .evm import DAY, NOBODY, Reverted, for_tests
from .jobs import BOND, ROOTS, STAKE, UNITS, WITH_WINDOW, World
from .test_registry import node_of

SEEDS = 6
STEPS = 120


class Jobs:
    """Two jobs that share a contract, and everybody who may do something with them, allowed or not."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.paid: Counter[tuple[int, str]] = Counter()
        self.jobs = [
            world.create(funds=3000, mode=ROOTS, **WITH_WINDOW),
            world.create(funds=2000, mode=UNITS, price=2),
        ]
        self.roots: dict[tuple[int, int], tuple[Tree, dict[str, int]]] = {}
        self.receivers = [*world.nodes[:3], world.evm.deploy(for_tests("Stubborn")).address]
        self.allowed = 0
        self.doings = [
            self.submit,
            self.submit,
            self.claim,
            self.claim,
            self.claim_old,
            self.contribute,
            self.distribute,
            self.dispute,
            self.resolve,
            self.lapse,
            self.bond,
            self.prepare,
            self.fund,
            self.wait,
            self.withdraw,
            self.close,
            self.sweep,
        ]

    def step(self) -> None:
        doing = self.random.choice(self.doings)
        try:
            doing()
            self.allowed += 1
        except Reverted:
            pass
        self.check()

    def anyone(self) -> str:
        world = self.world
        return self.random.choice([world.owner, world.coordinator, world.arbiter, *world.nodes[:3]])

    def submit(self) -> None:
        job = self.world.job(self.jobs[0])
        epoch = job["epoch"] + self.random.choice([1, 1, 1, 0, 2])
        amounts = {node: self.random.randint(0, 400) for node in self.receivers}
        total = sum(amounts.values()) + self.random.choice([0, 0, -5, 50])
        tree = self.world.submit(self.jobs[0], epoch, amounts, max(total, job["committed"]))
        self.roots[self.jobs[0], epoch] = (tree, amounts)

    def claim(self, epoch: int | None = None) -> None:
        number = self.world.job(self.jobs[0])["epoch"] if epoch is None else epoch
        if (self.jobs[0], number) not in self.roots:
            return
        tree, amounts = self.roots[self.jobs[0], number]
        node = self.random.choice(list(amounts))
        self._pay(
            self.world.rewards.send(
                self.anyone(), "claim", self.jobs[0], number, node, amounts[node], tree.proof(node)
            )
        )

    def claim_old(self) -> None:
        self.claim(self.random.randint(1, 12))

    def contribute(self) -> None:
        batch = self.world.rewards.ask("batches", self.jobs[1])
        node, units = self.random.choice(self.receivers), self.random.randint(0, 200)
        epoch = self.world.job(self.jobs[1])["epoch"]
        self.world.rewards.send(
            self.world.coordinator, "submitContribution", self.jobs[1], epoch, batch, node, units
        )

    def distribute(self) -> None:
        self._pay(self.world.rewards.send(self.anyone(), "distributePayments", self.jobs[1], self.receivers))

    def _pay(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        for name, fields in events:
            if name == "PaymentClaimed":
                key = (fields["jobId"], fields["node"])
                self.paid[key] += fields["amount"]
                assert self.paid[key] == fields["cumulative"]  # nobody is paid anything twice

    def dispute(self) -> None:
        epoch = self.world.job(self.jobs[0])["epoch"] - self.random.choice([0, 0, 1, 2])
        self.world.dispute(self.jobs[0], max(epoch, 0), by=self.anyone())

    def resolve(self) -> None:
        self.world.rewards.send(self.anyone(), "resolveDispute", self.jobs[0], self.random.random() < 0.5)

    def lapse(self) -> None:
        self.world.rewards.send(self.anyone(), "lapseDispute", self.jobs[0])

    def bond(self) -> None:
        self.world.bond(self.jobs[0])

    def prepare(self) -> None:
        self.world.rewards.send(self.anyone(), "prepareRing", self.jobs[0], self.random.randint(0, 70))

    def fund(self) -> None:
        self.world.rewards.send(
            self.anyone(), "fundJob", self.random.choice(self.jobs), 0, value=self.random.randint(0, 500)
        )

    def wait(self) -> None:
        self.world.evm.wait(self.random.choice([1, 100, 501, 2001, 5000]))

    def withdraw(self) -> None:
        who = self.anyone()
        self.world.rewards.send(who, "withdraw", NOBODY, who)

    def close(self) -> None:
        if self.random.random() < 0.15:
            self.world.rewards.send(self.world.owner, "closeJob", self.random.choice(self.jobs))

    def sweep(self) -> None:
        if self.random.random() < 0.3:
            self.world.evm.wait(2 * DAY)
            self.world.rewards.send(self.anyone(), "sweepJob", self.random.choice(self.jobs))

    def check(self) -> None:
        """Paid and committed within each budget; everything owed, bonded and budgeted is there, to the unit."""
        world, needed = self.world, 0
        for number in self.jobs:
            job = world.job(number)
            assert job["paid"] <= job["budget"]
            assert job["paid"] <= job["committed"] or job["swept"]
            assert job["committed"] <= job["budget"] or job["swept"]
            assert job["paid"] == sum(sum for (of, _), sum in self.paid.items() if of == number)
            needed += job["budget"] - job["paid"]
        bonds = world.rewards.ask("coordinatorBond", self.jobs[0])
        disputing = world.job(self.jobs[0])["bond"] if world.rewards.ask("getDispute", self.jobs[0])[0] else 0
        people = {*self.receivers, world.owner, world.coordinator, world.arbiter, *world.nodes[:3]}
        owed = sum(world.rewards.ask("owed", NOBODY, who) for who in people)
        assert world.evm.balance(world.rewards.address) == needed + bonds + disputing + owed


@pytest.mark.parametrize("seed", range(SEEDS))
def test_paid_and_claimable_never_exceed_the_escrow(world: World, seed: int) -> None:
    jobs = Jobs(world, seed)
    for _ in range(STEPS):
        jobs.step()
    assert jobs.allowed > STEPS // 5  # it must not all be refused


class Stakes:
    """Nodes that stake, leave and are accused, in any order."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.nodes = world.nodes[:3]
        self.slashed: Counter[str] = Counter()
        self.put_in: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()
        self.allowed = 0
        self.doings = [
            self.register,
            self.register,
            self.add,
            self.unstake,
            self.withdraw_stake,
            self.propose,
            self.dispute,
            self.decide,
            self.wait,
            self.withdraw,
        ]

    def step(self) -> None:
        try:
            self.random.choice(self.doings)()
            self.allowed += 1
        except Reverted:
            pass
        self.check()

    def one(self) -> str:
        return self.random.choice(self.nodes)

    def register(self) -> None:
        node, value = self.one(), self.random.choice([0, STAKE - 1, STAKE, 2 * STAKE])
        self.world.registry.send(node, "registerNode", b"\1" * 32, 0, value=value)
        self.put_in[node] += value

    def add(self) -> None:
        node, value = self.one(), self.random.randint(0, STAKE)
        self.world.registry.send(node, "addStake", value=value)
        self.put_in[node] += value

    def unstake(self) -> None:
        self.world.registry.send(self.one(), "requestUnstake", self.random.randint(0, 3 * STAKE))

    def withdraw_stake(self) -> None:
        node = self.one()
        events = dict(self.world.registry.send(node, "withdrawStake"))
        self.taken[node] += events["StakeWithdrawn"]["amount"]

    def propose(self) -> None:
        amount = self.random.randint(0, 2 * STAKE)
        self.world.registry.send(
            self.world.stranger, "proposeSlash", self.one(), amount, b"\1" * 32, value=BOND
        )

    def dispute(self) -> None:
        self.world.registry.send(self.one(), "disputeSlash", self._accusation(), value=BOND)

    def decide(self) -> None:
        call = self.random.choice(
            [("executeSlash",), ("lapseSlash",), ("resolveSlash", True), ("resolveSlash", False)]
        )
        events = self.world.registry.send(self.world.arbiter, call[0], self._accusation(), *call[1:])
        for name, fields in events:
            if name == "Slashed":
                self.slashed[self._as_given(fields["node"])] += fields["amount"]

    def _accusation(self) -> int:
        return self.random.randint(0, self.world.registry.ask("accusationCount"))

    def _as_given(self, address: str) -> str:
        return next(node for node in self.nodes if node.lower() == address.lower())

    def wait(self) -> None:
        self.world.evm.wait(self.random.choice([1, DAY // 2, DAY, 3 * DAY, 10 * DAY]))

    def withdraw(self) -> None:
        people = [*self.nodes, self.world.stranger, self.world.treasury]
        self.world.registry.send(self.random.choice(people), "withdraw")

    def check(self) -> None:
        world, stakes, weight = self.world, 0, 0
        for node in self.nodes:
            found = node_of(world, node)
            # A slashed stake cannot be withdrawn: what went in is what is there, what left and what was slashed.
            assert self.put_in[node] == found["stake"] + self.taken[node] + self.slashed[node]
            assert found["leaving"] <= found["stake"] and found["locked"] <= found["stake"]
            stakes += found["stake"]
            weight += found["stake"] - found["leaving"]
        bonds = 0
        for number in range(1, world.registry.ask("accusationCount") + 1):
            bonds += {1: BOND, 2: 2 * BOND}.get(world.registry.ask("getAccusation", number)[2], 0)
        people = [*self.nodes, world.stranger, world.treasury]
        owed = sum(world.registry.ask("owed", who) for who in people)
        assert world.evm.balance(world.registry.address) == stakes + bonds + owed
        assert world.registry.ask("totalWeight") == weight


@pytest.mark.parametrize("seed", range(SEEDS))
def test_stakes_bonds_and_slashes_add_up(world: World, seed: int) -> None:
    stakes = Stakes(world, seed)
    for _ in range(STEPS):
        stakes.step()
    assert stakes.allowed > STEPS // 5
