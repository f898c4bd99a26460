"""TrainingRewards: epoch roots, claims, and disputes to their end."""

from __future__ import annotations

import pytest

from shoal.chain.merkle import leaf_of, make_tree

from .evm import COIN, DAY, NOBODY, OTHER_BUILD, REWARDS, Reverted, for_tests
from .jobs import BOND, WITH_WINDOW, World, sign_root, stakers, token

DATA = b"\7" * 32


def test_a_leaf_is_what_the_contract_hashes(world: World) -> None:
    node = world.nodes[0]
    assert world.rewards.ask("leafOf", 7, node, 12345) == leaf_of(7, node, 12345)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_anyone_claims_for_everyone_and_nobody_twice(world: World, count: int) -> None:
    job = world.create()
    amounts = {node: 10 + place for place, node in enumerate(world.nodes[:count])}
    tree = world.submit(job, 1, amounts)
    before = {node: world.evm.balance(node) for node in amounts}
    for node, amount in amounts.items():
        world.claim(job, 1, tree, node, amount)
        assert world.evm.balance(node) == before[node] + amount
        with pytest.raises(Reverted, match="NothingDue"):
            world.claim(job, 1, tree, node, amount)
    assert world.job(job)["paid"] == sum(amounts.values())


def test_cumulative_leaves_make_up_for_missed_epochs(world: World) -> None:
    job = world.create()
    one, two = world.nodes[:2]
    first = world.submit(job, 1, {one: 10, two: 20})
    second = world.submit(job, 2, {one: 15, two: 40})
    world.claim(job, 1, first, one, 10)
    before = [world.evm.balance(node) for node in (one, two)]
    claims = [(one, 15, second.proof(one)), (two, 40, second.proof(two)), (two, 40, second.proof(two))]
    world.rewards.send(world.stranger, "claimMany", job, 2, claims)
    assert [world.evm.balance(node) for node in (one, two)] == [before[0] + 5, before[1] + 40]
    with pytest.raises(Reverted, match="NothingDue"):
        world.claim(job, 1, first, two, 20)


def test_wrong_claims_are_refused(world: World) -> None:
    job, other = world.create(), world.create()
    one, two = world.nodes[:2]
    tree = world.submit(job, 1, {one: 10, two: 20})
    world.submit(other, 1, {one: 10})
    for attempt in ((job, 1, two, 10), (job, 1, one, 11), (other, 1, two, 20)):
        with pytest.raises(Reverted, match="BadProof"):
            job_id, epoch, node, amount = attempt
            world.rewards.send(world.stranger, "claim", job_id, epoch, node, amount, tree.proof(one))
    for epoch in (0, 2, 99):
        with pytest.raises(Reverted, match="UnknownEpoch"):
            world.claim(job, epoch, tree, one, 10)
    with pytest.raises(Reverted, match="NoSuchJob"):
        world.claim(99, 1, tree, one, 10)


def test_submissions_come_once_in_order_within_budget_and_cap(world: World) -> None:
    job = world.create(funds=1500)
    node = world.nodes[0]
    world.submit(job, 1, {node: 100})
    for epoch in (1, 3):
        with pytest.raises(Reverted, match="WrongEpoch"):
            world.submit(job, epoch, {node: 200})
    with pytest.raises(Reverted, match="TotalShrinks"):
        world.submit(job, 2, {node: 99})
    with pytest.raises(Reverted, match="OverEpochCap"):
        world.submit(job, 2, {node: 1001})
    with pytest.raises(Reverted, match="NotAllowed"):
        world.rewards.send(world.stranger, "submitEpochRoot", job, 2, b"\1" * 32, 150, DATA)
    with pytest.raises(Reverted, match="EmptyRoot"):
        world.rewards.send(world.coordinator, "submitEpochRoot", job, 2, b"\0" * 32, 150, DATA)
    world.evm.wait(10_000)
    with pytest.raises(Reverted, match="OverBudget"):
        world.submit(job, 2, {node: 1501})
    world.submit(job, 2, {node: 1500})


def test_leaves_that_come_to_more_than_the_total_are_not_all_paid(world: World) -> None:
    job = world.create()
    one, two = world.nodes[:2]
    tree = world.submit(job, 1, {one: 600, two: 600}, total=700)
    world.claim(job, 1, tree, one, 600)
    with pytest.raises(Reverted, match="OverBudget"):
        world.claim(job, 1, tree, two, 600)


def test_tokens_are_claimed_too(world: World) -> None:
    coin = token(world.evm, world.owner, world.rewards.address)
    job = world.create(token=coin.address)
    tree = world.submit(job, 1, {world.nodes[0]: 77})
    world.claim(job, 1, tree, world.nodes[0], 77)
    assert coin.ask("balanceOf", world.nodes[0]) == 77


def test_the_ring_keeps_the_last_64(world: World) -> None:
    job = world.create(epochCap=10**6)
    node = world.nodes[0]
    trees = {epoch: world.submit(job, epoch, {node: epoch}) for epoch in range(1, 67)}
    with pytest.raises(Reverted, match="UnknownEpoch"):
        world.claim(job, 2, trees[2], node, 2)
    world.claim(job, 3, trees[3], node, 3)
    world.claim(job, 66, trees[66], node, 66)
    assert world.rewards.ask("getEpochRoot", job, 66)[0] == trees[66].root
    with pytest.raises(Reverted, match="UnknownEpoch"):
        world.rewards.ask("getEpochRoot", job, 2)


# --- disputes ----------------------------------------------------------------------------------------------


def disputable(world: World, **terms: int) -> int:
    job = world.create(**{**WITH_WINDOW, **terms})
    world.bond(job)
    return job


def owed(world: World, who: str) -> int:
    return int(world.rewards.ask("owed", NOBODY, who))


def test_a_root_pays_after_its_window_only(world: World) -> None:
    job = disputable(world)
    node = world.nodes[0]
    tree = world.submit(job, 1, {node: 10})
    assert world.rewards.ask("claimableFrom", job, 1)[0] is False
    with pytest.raises(Reverted, match="NotActiveYet"):
        world.claim(job, 1, tree, node, 10)
    world.evm.wait(500)
    assert world.rewards.ask("claimableFrom", job, 1)[0] is True
    assert world.rewards.ask("claimableFrom", job, 2) == (False, 0)
    with pytest.raises(Reverted, match="WindowOver"):
        world.dispute(job, 1)
    world.claim(job, 1, tree, node, 10)


def test_no_root_without_a_bond_where_there_is_one_to_lose(world: World) -> None:
    job = world.create(**WITH_WINDOW)
    with pytest.raises(Reverted, match="NoBond"):
        world.submit(job, 1, {world.nodes[0]: 10})
    world.bond(job)
    world.submit(job, 1, {world.nodes[0]: 10})
    with pytest.raises(Reverted, match="WrongBond"):
        world.dispute(job, 1, value=BOND - 1)


def test_a_wrong_root_is_challenged_and_the_right_one_stands(world: World) -> None:
    job = disputable(world)
    one, two = world.nodes[:2]
    world.submit(job, 1, {one: 10, two: 10})
    world.evm.wait(500)
    wrong = world.submit(job, 2, {one: 500, two: 11})
    world.dispute(job, 2, by=two)
    world.evm.wait(600)
    with pytest.raises(Reverted, match="Disputed"):
        world.claim(job, 2, wrong, one, 500)
    with pytest.raises(Reverted, match="Disputed"):
        world.submit(job, 3, {one: 500, two: 11})
    with pytest.raises(Reverted, match="NotAllowed"):
        world.rewards.send(world.coordinator, "resolveDispute", job, True)
    world.rewards.send(world.arbiter, "resolveDispute", job, False)
    assert owed(world, two) == 2 * BOND and world.rewards.ask("coordinatorBond", job) == 0
    assert (world.job(job)["epoch"], world.job(job)["committed"]) == (1, 20)
    with pytest.raises(Reverted, match="UnknownEpoch"):
        world.claim(job, 2, wrong, one, 500)
    with pytest.raises(Reverted, match="NoBond"):
        world.submit(job, 2, {one: 12, two: 30})
    world.bond(job)
    right = world.submit(job, 2, {one: 12, two: 30})
    world.evm.wait(500)
    world.claim(job, 2, right, two, 30)
    world.claim(job, 2, right, one, 12)


def test_a_right_root_that_was_challenged_stands_and_the_challenger_pays(world: World) -> None:
    job = disputable(world)
    node = world.nodes[0]
    tree = world.submit(job, 1, {node: 10})
    world.dispute(job, 1, by=world.stranger)
    with pytest.raises(Reverted, match="Disputed"):
        world.dispute(job, 1)
    world.rewards.send(world.arbiter, "resolveDispute", job, True)
    assert world.rewards.ask("coordinatorBond", job) == 2 * BOND and owed(world, world.stranger) == 0
    with pytest.raises(Reverted, match="NoDispute"):
        world.rewards.send(world.arbiter, "resolveDispute", job, True)
    world.evm.wait(500)
    world.claim(job, 1, tree, node, 10)


def test_a_dispute_that_nobody_decides_lapses_and_both_keep_their_bonds(world: World) -> None:
    job = disputable(world)
    world.submit(job, 1, {world.nodes[0]: 10})
    world.dispute(job, 1)
    with pytest.raises(Reverted, match="TooEarly"):
        world.rewards.send(world.stranger, "lapseDispute", job)
    world.evm.wait(2000)
    world.rewards.send(world.stranger, "lapseDispute", job)
    assert owed(world, world.nodes[0]) == BOND == world.rewards.ask("coordinatorBond", job)
    assert world.job(job)["epoch"] == 0
    world.submit(job, 1, {world.nodes[0]: 10})


def test_later_roots_fall_with_the_disputed_one_and_earlier_ones_do_not(world: World) -> None:
    job = disputable(world)
    node = world.nodes[0]
    trees = {epoch: world.submit(job, epoch, {node: 10 * epoch}) for epoch in (1, 2, 3)}
    world.dispute(job, 2)
    world.evm.wait(600)
    world.claim(job, 1, trees[1], node, 10)
    for epoch in (2, 3):
        with pytest.raises(Reverted, match="Disputed"):
            world.claim(job, epoch, trees[epoch], node, 10 * epoch)
    assert world.rewards.ask("claimableFrom", job, 3) == (False, 0)
    world.rewards.send(world.arbiter, "resolveDispute", job, False)
    assert (world.job(job)["epoch"], world.job(job)["committed"]) == (1, 10)
    for epoch in (2, 3):
        with pytest.raises(Reverted, match="UnknownEpoch"):
            world.claim(job, epoch, trees[epoch], node, 10 * epoch)


def test_later_roots_have_a_whole_window_after_a_dispute(world: World) -> None:
    job = disputable(world)
    node = world.nodes[0]
    trees = {epoch: world.submit(job, epoch, {node: 10 * epoch}) for epoch in (1, 2)}
    world.dispute(job, 1)
    world.evm.wait(600)
    world.rewards.send(world.arbiter, "resolveDispute", job, True)
    world.claim(job, 1, trees[1], node, 10)
    with pytest.raises(Reverted, match="NotActiveYet"):
        world.claim(job, 2, trees[2], node, 20)
    world.dispute(job, 2)
    world.rewards.send(world.arbiter, "resolveDispute", job, True)
    world.claim(job, 2, trees[2], node, 20)


def test_an_earlier_dispute_takes_the_place_of_a_later_one(world: World) -> None:
    job = disputable(world)
    node = world.nodes[0]
    for epoch in (1, 2):
        world.submit(job, epoch, {node: 10 * epoch})
    world.dispute(job, 2, by=world.nodes[1])
    with pytest.raises(Reverted, match="Disputed"):
        world.dispute(job, 2, by=world.nodes[2])
    world.dispute(job, 1, by=world.nodes[2])
    assert owed(world, world.nodes[1]) == BOND
    world.rewards.send(world.arbiter, "resolveDispute", job, False)
    assert owed(world, world.nodes[2]) == 2 * BOND
    assert world.job(job)["epoch"] == 0


def test_a_second_lost_dispute_costs_what_is_left_of_the_bond(world: World) -> None:
    job = disputable(world)
    node = world.nodes[0]
    for epoch in (1, 2):
        world.submit(job, epoch, {node: 10 * epoch})
    for epoch, won in ((2, 2 * BOND), (1, 3 * BOND)):
        world.dispute(job, epoch)
        world.rewards.send(world.arbiter, "resolveDispute", job, False)
        assert owed(world, node) == won
    assert world.evm.balance(world.rewards.address) == 10_000 + 3 * BOND


def test_leaves_that_shrink_prove_themselves_wrong(world: World) -> None:
    job = disputable(world)
    one, two = world.nodes[:2]
    first = world.submit(job, 1, {one: 50, two: 10})
    world.evm.wait(500)
    wrong = world.submit(job, 2, {one: 40, two: 100})
    world.dispute(job, 2, by=one)
    prove = ("proveDecrease", job, 1)
    with pytest.raises(Reverted, match="NoContradiction"):
        world.rewards.send(one, *prove, two, 10, first.proof(two), 100, wrong.proof(two))
    with pytest.raises(Reverted, match="BadProof"):
        world.rewards.send(one, *prove, one, 51, first.proof(one), 40, wrong.proof(one))
    with pytest.raises(Reverted, match="BadProof"):
        world.rewards.send(one, *prove, one, 50, first.proof(one), 39, wrong.proof(one))
    with pytest.raises(Reverted, match="WrongEpoch"):
        world.rewards.send(one, "proveDecrease", job, 2, one, 50, first.proof(one), 40, wrong.proof(one))
    world.rewards.send(one, *prove, one, 50, first.proof(one), 40, wrong.proof(one))
    assert owed(world, one) == 2 * BOND and world.job(job)["epoch"] == 1


def test_a_leaf_below_what_was_paid_proves_itself_wrong(world: World) -> None:
    job = disputable(world)
    one, two = world.nodes[:2]
    first = world.submit(job, 1, {one: 50, two: 10})
    world.evm.wait(500)
    world.claim(job, 1, first, one, 50)
    wrong = world.submit(job, 2, {one: 49, two: 100})
    world.dispute(job, 2, by=one)
    with pytest.raises(Reverted, match="NoContradiction"):
        world.rewards.send(one, "proveDecrease", job, 0, two, 0, [], 100, wrong.proof(two))
    world.rewards.send(one, "proveDecrease", job, 0, one, 0, [], 49, wrong.proof(one))
    assert world.job(job)["epoch"] == 1


def test_the_stakers_signatures_put_the_right_root_in_its_place(world: World) -> None:
    signers = stakers(world, 3)
    world.evm.wait(10)
    job = disputable(world, quorumPercent=67)
    one, two = world.nodes[:2]
    world.submit(job, 1, {one: 500, two: 1})
    world.dispute(job, 1, by=two)
    right = make_tree(job, {one: 20, two: 30})
    words = [sign_root(world, signer, job, 1, right.root, 50, DATA) for signer in signers]
    resolve = ("resolveByQuorum", job, right.root, 50, DATA)
    with pytest.raises(Reverted, match="NoQuorum"):
        world.rewards.send(two, *resolve, words[:2])  # 66.7 percent
    with pytest.raises(Reverted, match="NotAllowed"):
        world.rewards.send(two, *resolve, [words[0], words[0], words[1]])
    with pytest.raises(Reverted, match=r"NoQuorum|NotAllowed"):
        world.rewards.send(two, "resolveByQuorum", job, right.root, 51, DATA, words)
    world.rewards.send(two, *resolve, words)
    assert owed(world, two) == 2 * BOND
    assert (world.job(job)["epoch"], world.job(job)["committed"]) == (1, 50)
    world.claim(job, 1, right, two, 30)  # at once: no window is left to wait for
    with pytest.raises(Reverted, match="WindowOver"):
        world.dispute(job, 1)
    world.bond(job)
    later = world.submit(job, 2, {one: 21, two: 31})
    with pytest.raises(Reverted, match="NotActiveYet"):
        world.claim(job, 2, later, two, 31)


def test_the_stakers_may_say_that_the_root_is_right(world: World) -> None:
    signers = stakers(world, 2)
    world.evm.wait(10)
    job = disputable(world, quorumPercent=100)
    tree = world.submit(job, 1, {world.nodes[0]: 50})
    world.dispute(job, 1, by=world.stranger)
    words = [sign_root(world, signer, job, 1, tree.root, 50, DATA) for signer in signers]
    world.rewards.send(world.stranger, "resolveByQuorum", job, tree.root, 50, DATA, words)
    assert world.rewards.ask("coordinatorBond", job) == 2 * BOND


def test_stake_that_came_after_the_root_does_not_count(world: World) -> None:
    job = disputable(world, quorumPercent=60)
    node = world.nodes[0]
    world.submit(job, 1, {node: 50})
    world.dispute(job, 1)
    world.evm.wait(10)
    signers = stakers(world, 3)
    other = make_tree(job, {node: 999})
    words = [sign_root(world, signer, job, 1, other.root, 999, DATA) for signer in signers]
    with pytest.raises(Reverted, match="NoQuorum"):
        world.rewards.send(node, "resolveByQuorum", job, other.root, 999, DATA, words)


def test_without_a_quorum_in_the_terms_signatures_decide_nothing(world: World) -> None:
    signers = stakers(world, 1)
    world.evm.wait(10)
    job = disputable(world)
    world.submit(job, 1, {world.nodes[0]: 50})
    world.dispute(job, 1)
    tree = make_tree(job, {world.nodes[0]: 60})
    words = [sign_root(world, signers[0], job, 1, tree.root, 60, DATA)]
    with pytest.raises(Reverted, match="NoQuorum"):
        world.rewards.send(world.nodes[0], "resolveByQuorum", job, tree.root, 60, DATA, words)


def test_no_root_is_pushed_out_while_it_may_be_disputed(world: World) -> None:
    job = disputable(world, epochCap=10**6, window=50_000)
    node = world.nodes[0]
    for epoch in range(1, 64):
        world.submit(job, epoch, {node: epoch})
    with pytest.raises(Reverted, match="RingFull"):
        world.submit(job, 64, {node: 64})
    world.dispute(job, 1)  # the oldest still can be
    world.rewards.send(world.arbiter, "resolveDispute", job, True)
    world.evm.wait(50_000)
    world.submit(job, 64, {node: 64})


@pytest.mark.parametrize("window", [0, 500])
def test_a_prepared_ring_makes_the_first_roots_as_cheap_as_later_ones_and_pays_nothing(
    world: World, window: int
) -> None:
    job = disputable(world, epochCap=10**30) if window else world.create(epochCap=10**30, funds=10**20)
    node = world.nodes[0]
    if window:
        world.rewards.send(world.owner, "fundJob", job, 0, value=10**20)
    world.rewards.send(world.stranger, "prepareRing", job, 3)
    assert dict(world.rewards.send(world.stranger, "prepareRing", job, 1000))["RingPrepared"]["slots"] == 61
    with pytest.raises(Reverted, match="NothingToDo"):
        world.rewards.send(world.stranger, "prepareRing", job, 64)
    for epoch in (0, 1, 64, 2**64 - 1):
        with pytest.raises(Reverted, match="UnknownEpoch"):
            world.rewards.ask("getEpochRoot", job, epoch)
        with pytest.raises(Reverted, match="UnknownEpoch"):
            world.rewards.send(world.stranger, "claim", job, epoch, node, 1, [])
        assert list(world.rewards.ask("claimableFrom", job, epoch)) == [False, 0]
    amounts = {node: 10**18, world.nodes[1]: 10**18}  # of the size that a thousand nodes earn
    trees = [world.submit(job, epoch, amounts) for epoch in (1, 2, 3)]
    most = 10**6 if OTHER_BUILD else 60 * 1000
    assert max(world.evm.gas["submitEpochRoot"][-2:]) <= most, "at a thousand nodes, 60 for each"
    world.evm.wait(500)
    world.claim(job, 3, trees[2], node, 10**18)


def test_roots_that_fell_leave_no_old_root_in_their_place(world: World) -> None:
    job = disputable(world, epochCap=10**6, window=10)
    node = world.nodes[0]
    for epoch in range(1, 66):
        world.submit(job, epoch, {node: epoch})
        world.evm.wait(20)
    wrong = world.submit(job, 66, {node: 9_999})  # where epoch 2 was
    world.dispute(job, 66)
    world.rewards.send(world.arbiter, "resolveDispute", job, False)
    world.evm.wait(100)
    with pytest.raises(Reverted, match="UnknownEpoch"):
        world.claim(job, 2, wrong, node, 9_999)
    with pytest.raises(Reverted, match="UnknownEpoch"):
        world.rewards.ask("getEpochRoot", job, 2)


def test_an_owner_cannot_dispute_and_close_its_way_out(world: World) -> None:
    job = disputable(world)
    node = world.nodes[0]
    tree = world.submit(job, 1, {node: 900})
    world.dispute(job, 1, by=world.owner)
    world.rewards.send(world.owner, "closeJob", job)
    assert world.job(job)["budget"] == 900
    world.evm.wait(2000)
    world.rewards.send(world.owner, "lapseDispute", job)  # a silent arbiter
    world.submit(job, 1, {node: 900})  # what was committed may be put right
    world.evm.wait(500)
    world.claim(job, 1, tree, node, 900)


def test_a_closed_job_commits_nothing_more_and_waits_for_disputes(world: World) -> None:
    job = disputable(world)
    node = world.nodes[0]
    world.submit(job, 1, {node: 100})
    world.rewards.send(world.owner, "closeJob", job)
    with pytest.raises(Reverted, match="OverBudget"):
        world.submit(job, 2, {node: 101})
    world.submit(job, 2, {node: 100})
    world.dispute(job, 2)
    world.evm.wait(DAY + 3000)
    with pytest.raises(Reverted, match="Disputed"):
        world.rewards.send(world.owner, "sweepJob", job)
    with pytest.raises(Reverted, match="JobIsOpen"):
        world.rewards.send(world.coordinator, "withdrawBond", job)
    world.rewards.send(world.arbiter, "resolveDispute", job, True)
    world.rewards.send(world.owner, "sweepJob", job)
    with pytest.raises(Reverted, match="JobIsClosed"):
        world.submit(job, 3, {node: 100})
    with pytest.raises(Reverted, match="NotAllowed"):
        world.rewards.send(world.owner, "withdrawBond", job)
    before = world.evm.balance(world.rewards.address)
    world.rewards.send(world.coordinator, "withdrawBond", job)
    assert before - world.evm.balance(world.rewards.address) == 2 * BOND
    with pytest.raises(Reverted, match="NothingToDo"):
        world.rewards.send(world.coordinator, "withdrawBond", job)


def test_after_the_sweep_no_old_root_pays(world: World) -> None:
    world.create(funds=5000)
    job = world.create()
    node = world.nodes[0]
    tree = world.submit(job, 1, {node: 100})
    world.rewards.send(world.owner, "closeJob", job)
    world.evm.wait(DAY)
    world.rewards.send(world.owner, "sweepJob", job)
    with pytest.raises(Reverted, match="JobIsClosed"):
        world.claim(job, 1, tree, node, 100)
    assert world.evm.balance(world.rewards.address) == 5000


def test_a_claim_that_reenters_is_paid_once(world: World) -> None:
    world.create(funds=COIN)
    thief = world.evm.deploy(for_tests("Reenterer"))
    job = world.create()
    tree = world.submit(job, 1, {thief.address: 100, world.nodes[0]: 5})
    again = REWARDS["claim"].call(job, 1, thief.address, 100, tree.proof(thief.address))
    thief.send(world.owner, "arm", world.rewards.address, again)
    world.claim(job, 1, tree, thief.address, 100)
    assert not thief.ask("succeeded")
    assert world.evm.balance(thief.address) + owed(world, thief.address) == 100


def test_a_won_bond_is_fetched_and_one_that_cannot_be_sent_stays(world: World) -> None:
    job = disputable(world)
    challenger, refuses = world.nodes[0], world.evm.deploy(for_tests("Stubborn"))
    with pytest.raises(Reverted, match="UnknownEpoch"):
        world.dispute(job, 1)
    world.submit(job, 1, {challenger: 50})
    world.dispute(job, 1)
    open_dispute = world.rewards.ask("getDispute", job)
    assert open_dispute[0] == 1 and open_dispute[4].lower() == challenger.lower()
    assert world.rewards.ask("stakes").lower() == world.registry.address.lower()
    world.rewards.send(world.arbiter, "resolveDispute", job, False)
    for to, error in ((refuses.address, "TransferFailed"), (NOBODY, "NothingToDo")):
        with pytest.raises(Reverted, match=error):
            world.rewards.send(challenger, "withdraw", NOBODY, to)
    assert owed(world, challenger) == 2 * BOND
    before = world.evm.balance(world.nodes[3])
    world.rewards.send(challenger, "withdraw", NOBODY, world.nodes[3])
    assert world.evm.balance(world.nodes[3]) - before == 2 * BOND
    with pytest.raises(Reverted, match="NothingToDo"):
        world.rewards.send(challenger, "withdraw", NOBODY, challenger)


def test_disputes_without_a_bond_cost_and_win_nothing(world: World) -> None:
    job = world.create(**{**WITH_WINDOW, "bond": 0})
    one, two = world.nodes[:2]
    world.submit(job, 1, {one: 50})
    world.submit(job, 2, {one: 60})
    world.dispute(job, 2, by=two, value=0)
    world.dispute(job, 1, by=one, value=0)
    world.rewards.send(world.arbiter, "resolveDispute", job, False)
    assert owed(world, one) == owed(world, two) == 0
    assert world.job(job)["epoch"] == world.job(job)["committed"] == 0
