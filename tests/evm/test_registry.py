"""NodeRegistry: stakes, leaving, and accusations."""

from __future__ import annotations

import pytest

from .evm import DAY, NOBODY, REGISTRY, Reverted, for_tests
from .jobs import BOND, STAKE, World

FIELDS = ["stake", "leaving", "locked", "unlockAt", "since", "slashes", "capabilities", "metadata"]
EVIDENCE = b"\x0e" * 32


def node_of(world: World, node: str) -> dict[str, int]:
    return dict(zip(FIELDS, world.registry.ask("getNode", node), strict=True))


def register(world: World, node: str, stake: int = STAKE) -> None:
    world.registry.send(node, "registerNode", b"\1" * 32, 5, value=stake)


def propose(world: World, node: str, amount: int) -> int:
    events = dict(world.registry.send(world.stranger, "proposeSlash", node, amount, EVIDENCE, value=BOND))
    return int(events["SlashProposed"]["id"])


def test_a_node_registers_updates_and_adds_to_its_stake(world: World) -> None:
    node = world.nodes[0]
    with pytest.raises(Reverted, match="StakeTooSmall"):
        register(world, node, STAKE - 1)
    register(world, node)
    world.registry.send(node, "addStake", value=7)
    world.registry.send(node, "updateNode", b"\2" * 32, 9)
    found = node_of(world, node)
    assert (found["stake"], found["metadata"], found["capabilities"]) == (STAKE + 7, b"\2" * 32, 9)
    assert world.registry.ask("isActive", node)
    assert world.registry.ask("weightOf", node)[0] == STAKE + 7 == world.registry.ask("totalWeight")


def test_those_who_are_not_registered_can_do_nothing(world: World) -> None:
    nobody = world.nodes[0]
    for call in (("updateNode", b"\1" * 32, 0), ("addStake",), ("requestUnstake", 1), ("withdrawStake",)):
        with pytest.raises(Reverted, match="NotRegistered"):
            world.registry.send(nobody, *call)
    with pytest.raises(Reverted, match="NotRegistered"):
        propose(world, nobody, 1)
    assert not world.registry.ask("isActive", nobody)


def test_leaving_takes_its_time(world: World) -> None:
    node = world.nodes[0]
    register(world, node, 3 * STAKE)
    with pytest.raises(Reverted, match="NothingToDo"):
        world.registry.send(node, "withdrawStake")
    with pytest.raises(Reverted, match="NothingToDo"):
        world.registry.send(node, "requestUnstake", 0)
    with pytest.raises(Reverted, match="NothingToDo"):
        world.registry.send(node, "addStake")
    with pytest.raises(Reverted, match="TooMuch"):
        world.registry.send(node, "requestUnstake", 3 * STAKE + 1)
    with pytest.raises(Reverted, match="StakeTooSmall"):
        world.registry.send(node, "requestUnstake", 2 * STAKE + 1)
    world.registry.send(node, "requestUnstake", STAKE)
    assert world.registry.ask("totalWeight") == 2 * STAKE
    with pytest.raises(Reverted, match="TooEarly"):
        world.registry.send(node, "withdrawStake")
    world.evm.wait(10 * DAY)
    before = world.evm.balance(world.registry.address)
    assert dict(world.registry.send(node, "withdrawStake"))["StakeWithdrawn"]["amount"] == STAKE
    assert before - world.evm.balance(world.registry.address) == STAKE
    assert node_of(world, node)["stake"] == 2 * STAKE


def test_registering_again_takes_a_request_back(world: World) -> None:
    node = world.nodes[0]
    register(world, node, 2 * STAKE)
    world.registry.send(node, "requestUnstake", 2 * STAKE)
    assert not world.registry.ask("isActive", node)
    register(world, node, 0)
    assert world.registry.ask("isActive", node) and world.registry.ask("totalWeight") == 2 * STAKE
    world.evm.wait(10 * DAY)
    with pytest.raises(Reverted, match="NothingToDo"):
        world.registry.send(node, "withdrawStake")


def test_an_undisputed_accusation_is_executed_after_the_window(world: World) -> None:
    node = world.nodes[0]
    register(world, node, 2 * STAKE)
    accusation = propose(world, node, STAKE + 5)
    with pytest.raises(Reverted, match="TooEarly"):
        world.registry.send(world.stranger, "executeSlash", accusation)
    world.evm.wait(DAY)
    with pytest.raises(Reverted, match="TooLate"):
        world.registry.send(node, "disputeSlash", accusation, value=BOND)
    world.registry.send(world.nodes[3], "executeSlash", accusation)
    with pytest.raises(Reverted, match="WrongStatus"):
        world.registry.send(world.nodes[3], "executeSlash", accusation)
    found = node_of(world, node)
    assert (found["stake"], found["locked"], found["slashes"]) == (STAKE - 5, 0, 1)
    assert not world.registry.ask("isActive", node)
    assert world.registry.ask("owed", world.treasury) == STAKE + 5
    assert world.registry.ask("owed", world.stranger) == BOND
    before = world.evm.balance(world.registry.address)
    world.registry.send(world.treasury, "withdraw")
    assert before - world.evm.balance(world.registry.address) == STAKE + 5
    with pytest.raises(Reverted, match="NothingToDo"):
        world.registry.send(world.treasury, "withdraw")


def test_an_accused_stake_cannot_leave_and_a_slashed_one_is_gone(world: World) -> None:
    node = world.nodes[0]
    register(world, node, 2 * STAKE)
    world.registry.send(node, "requestUnstake", 2 * STAKE)
    world.evm.wait(10 * DAY)
    accusation = propose(world, node, 2 * STAKE - 3)  # at the last moment
    assert dict(world.registry.send(node, "withdrawStake"))["StakeWithdrawn"]["amount"] == 3
    with pytest.raises(Reverted, match="NothingToDo"):
        world.registry.send(node, "withdrawStake")
    world.evm.wait(DAY)
    world.registry.send(world.stranger, "executeSlash", accusation)
    for call in ("withdrawStake", "updateNode"):
        with pytest.raises(Reverted, match="NotRegistered"):
            world.registry.send(node, call, *((b"\1" * 32, 0) if call == "updateNode" else ()))
    assert world.registry.ask("totalWeight") == 0


@pytest.mark.parametrize("upheld", [True, False])
def test_the_arbiter_decides_and_the_winner_has_both_bonds(world: World, upheld: bool) -> None:
    node = world.nodes[0]
    register(world, node)
    accusation = propose(world, node, STAKE // 2)
    with pytest.raises(Reverted, match="NotAllowed"):
        world.registry.send(world.stranger, "disputeSlash", accusation, value=BOND)
    with pytest.raises(Reverted, match="WrongBond"):
        world.registry.send(node, "disputeSlash", accusation, value=BOND - 1)
    with pytest.raises(Reverted, match="WrongStatus"):
        world.registry.send(world.arbiter, "resolveSlash", accusation, upheld)
    world.registry.send(node, "disputeSlash", accusation, value=BOND)
    with pytest.raises(Reverted, match="WrongStatus"):
        world.registry.send(node, "disputeSlash", accusation, value=BOND)
    world.evm.wait(DAY)
    with pytest.raises(Reverted, match="WrongStatus"):
        world.registry.send(world.stranger, "executeSlash", accusation)
    with pytest.raises(Reverted, match="NotAllowed"):
        world.registry.send(world.stranger, "resolveSlash", accusation, upheld)
    world.registry.send(world.arbiter, "resolveSlash", accusation, upheld)
    winner, loser = (world.stranger, node) if upheld else (node, world.stranger)
    assert (world.registry.ask("owed", winner), world.registry.ask("owed", loser)) == (2 * BOND, 0)
    assert node_of(world, node)["stake"] == (STAKE - STAKE // 2 if upheld else STAKE)
    assert node_of(world, node)["locked"] == 0
    assert world.registry.ask("getAccusation", accusation)[2] == (3 if upheld else 4)


def test_an_arbiter_who_stays_silent_decides_nothing(world: World) -> None:
    node = world.nodes[0]
    register(world, node)
    accusation = propose(world, node, STAKE)
    with pytest.raises(Reverted, match="WrongStatus"):
        world.registry.send(world.stranger, "lapseSlash", accusation)
    world.registry.send(node, "disputeSlash", accusation, value=BOND)
    with pytest.raises(Reverted, match="TooEarly"):
        world.registry.send(world.stranger, "lapseSlash", accusation)
    world.evm.wait(2 * DAY)
    world.registry.send(world.stranger, "lapseSlash", accusation)
    assert [world.registry.ask("owed", who) for who in (node, world.stranger)] == [BOND, BOND]
    assert node_of(world, node)["locked"] == 0
    with pytest.raises(Reverted, match="WrongStatus"):
        world.registry.send(world.arbiter, "resolveSlash", accusation, True)


def test_accusations_are_backed_by_a_bond_and_by_the_stake(world: World) -> None:
    node = world.nodes[0]
    register(world, node)
    with pytest.raises(Reverted, match="WrongBond"):
        world.registry.send(world.stranger, "proposeSlash", node, 1, EVIDENCE, value=BOND + 1)
    with pytest.raises(Reverted, match="NothingToDo"):
        propose(world, node, 0)
    propose(world, node, STAKE - 1)
    with pytest.raises(Reverted, match="TooMuch"):
        propose(world, node, 2)
    propose(world, node, 1)


def test_a_slash_eats_what_is_leaving_last(world: World) -> None:
    node = world.nodes[0]
    register(world, node, 4 * STAKE)
    world.registry.send(node, "requestUnstake", 2 * STAKE)
    accusation = propose(world, node, 3 * STAKE)
    world.evm.wait(DAY)
    world.registry.send(world.stranger, "executeSlash", accusation)
    found = node_of(world, node)
    assert (found["stake"], found["leaving"]) == (STAKE, STAKE)
    assert world.registry.ask("totalWeight") == 0


def test_money_that_is_refused_is_not_lost(world: World) -> None:
    proud = world.evm.deploy(for_tests("Stubborn"))
    register_call = REGISTRY["registerNode"].call(b"\1" * 32, 0)
    proud.send(world.owner, "act", world.registry.address, register_call, value=STAKE)
    proud.send(world.owner, "act", world.registry.address, REGISTRY["requestUnstake"].call(STAKE))
    world.evm.wait(10 * DAY)
    withdraw = REGISTRY["withdrawStake"].call()
    with pytest.raises(Reverted, match="failed"):
        proud.send(world.owner, "act", world.registry.address, withdraw)
    proud.send(world.owner, "agree")
    proud.send(world.owner, "act", world.registry.address, withdraw)
    assert world.evm.balance(proud.address) == STAKE


def test_no_reentrance_takes_a_stake_twice(world: World) -> None:
    register(world, world.nodes[0], 5 * STAKE)
    thief = world.evm.deploy(for_tests("Reenterer"))
    thief.send(
        world.owner,
        "act",
        world.registry.address,
        REGISTRY["registerNode"].call(b"\1" * 32, 0),
        value=2 * STAKE,
    )
    thief.send(world.owner, "act", world.registry.address, REGISTRY["requestUnstake"].call(2 * STAKE))
    world.evm.wait(10 * DAY)
    withdraw = REGISTRY["withdrawStake"].call()
    thief.send(world.owner, "arm", world.registry.address, withdraw)
    thief.send(world.owner, "act", world.registry.address, withdraw)
    assert (thief.ask("tried"), thief.ask("succeeded")) == (1, False)
    assert world.evm.balance(thief.address) == 2 * STAKE
    assert world.evm.balance(world.registry.address) == 5 * STAKE


def test_nobody_is_no_arbiter(world: World) -> None:
    for arbiter, treasury in ((NOBODY, world.owner), (world.owner, NOBODY)):
        with pytest.raises(Reverted, match="ZeroAddress"):
            world.evm.deploy(REGISTRY, STAKE, BOND, DAY, DAY, DAY, arbiter, treasury)


def test_a_registry_without_bonds_owes_none(world: World) -> None:
    registry = world.evm.deploy(REGISTRY, STAKE, 0, DAY, DAY, DAY, world.arbiter, world.treasury)
    node, accuser = world.nodes[:2]
    registry.send(node, "registerNode", b"\1" * 32, 0, value=STAKE)
    for wrong, status in (("executeSlash", 0), ("lapseSlash", 0), ("disputeSlash", 0)):
        with pytest.raises(Reverted, match=f"WrongStatus\\({status}\\)"):
            registry.send(node, wrong, 7)
    with pytest.raises(Reverted, match="WrongStatus"):
        registry.send(world.arbiter, "resolveSlash", 7, True)
    registry.send(accuser, "proposeSlash", node, 5, EVIDENCE)
    world.evm.wait(DAY)
    registry.send(world.stranger, "executeSlash", 1)
    assert registry.ask("owed", accuser) == 0
    assert registry.ask("owed", world.treasury) == 5
