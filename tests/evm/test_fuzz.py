"""Fuzzing on the EVM: trees of any shape, proofs that are not theirs, amounts at the edges, random call data."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.chain.merkle import make_tree
from shoal.chain.rpc import Refused

from .evm import Reverted
from .jobs import World

BOUNDED = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
ADDRESSES = st.binary(min_size=20, max_size=20).filter(any).map(lambda b: "0x" + b.hex())


@BOUNDED
@given(
    amounts=st.dictionaries(ADDRESSES, st.integers(1, 10**30), min_size=1, max_size=40),
    data=st.data(),
)
def test_every_leaf_of_any_tree_is_proved_and_no_other(
    world: World, amounts: dict[str, int], data: st.DataObject
) -> None:
    total = sum(amounts.values())
    job = world.create(funds=10**20, epochCap=10**20)
    tree = make_tree(job, amounts)
    world.rewards.send(
        world.coordinator, "submitEpochRoot", job, 1, tree.root, min(total, 10**20), b"\1" * 32
    )
    node = data.draw(st.sampled_from(sorted(amounts)))
    other = data.draw(ADDRESSES.filter(lambda address: address not in amounts))
    wrong = data.draw(st.integers(0, (1 << 128) - 1).filter(lambda n: n != amounts[node]))
    proof = tree.proof(node)
    for address, amount in ((node, wrong), (other, amounts[node])):
        with pytest.raises(Reverted, match="BadProof"):
            world.rewards.send(world.stranger, "claim", job, 1, address, amount, proof)
    try:
        world.rewards.send(world.stranger, "claim", job, 1, node, amounts[node], proof)
        assert world.rewards.ask("paidTo", job, node) == amounts[node]
    except Reverted as refused:
        assert amounts[node] > 10**20 and str(refused).startswith("OverBudget")


@BOUNDED
@given(
    price=st.integers(1, (1 << 128) - 1),
    units=st.lists(st.integers(0, (1 << 96) - 1), min_size=1, max_size=8),
    funds=st.integers(0, 10**20),
    cap=st.integers(1, (1 << 128) - 1),
)
def test_units_at_any_price_never_commit_more_than_there_is(
    world: World, price: int, units: list[int], funds: int, cap: int
) -> None:
    job = world.create(funds=funds, mode=1, price=price, epochCap=cap)
    packed = [bytes.fromhex(world.nodes[i % 3][2:]) + n.to_bytes(12, "big") for i, n in enumerate(units)]
    due = sum(units) * price
    try:
        world.rewards.send(world.coordinator, "submitContributions", job, 1, 0, packed)
        assert due <= min(funds, world.rewards.ask("released", job))
    except Reverted:
        assert due > min(funds, cap)
    assert world.job(job)["committed"] <= funds


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=300), pick=st.integers(0, 10**6), value=st.sampled_from([0, 1, 10**18]))
def test_random_call_data_moves_no_money_out(world: World, data: bytes, pick: int, value: int) -> None:
    world.create(funds=10**6)
    for contract in (world.rewards, world.registry):
        functions = sorted(contract.interface.functions.values(), key=lambda one: one.name)
        call = functions[pick % len(functions)].selector + data
        before = world.evm.balance(contract.address)
        request = {
            "from": world.stranger,
            "to": contract.address,
            "data": "0x" + call.hex(),
            "value": hex(value),
        }
        try:
            receipt = world.evm.rpc.call("eth_sendTransactionSync", {**request, "gas": hex(5_000_000)})
        except Refused:
            continue
        gained = world.evm.balance(contract.address) - before
        assert gained in ((0, value) if receipt["status"] == "0x1" else (0,))
