"""TrainingRewards: creating, funding, closing; units and vouchers."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.chain.signing import Account

from .evm import DAY, NOBODY, REWARDS, Reverted, for_tests
from .jobs import KEYS, ROOTS, UNITS, VOUCHERS, World, sign_voucher, token

MAX128 = (1 << 128) - 1


def packed(*items: tuple[str, int]) -> list[bytes]:
    return [bytes.fromhex(node[2:]) + units.to_bytes(12, "big") for node, units in items]


@pytest.mark.parametrize(
    ("what", "terms"),
    [
        ("mode", {"mode": 0}),
        ("coordinator", {"coordinator": NOBODY}),
        ("epochCap", {"epochCap": 0}),
        ("epochSeconds", {"epochSeconds": 0}),
        ("claimPeriod", {"claimPeriod": DAY - 1}),
        ("token", {"token": "0x" + "12" * 20}),
        ("price", {"mode": UNITS}),
        ("price", {"price": 5}),
        ("window", {"mode": UNITS, "price": 1, "window": 5, "resolution": 5}),
        ("arbiter", {"window": 5, "resolution": 5, "arbiter": NOBODY}),
        ("arbiter", {"window": 5}),
        ("quorumPercent", {"quorumPercent": 50}),
        ("quorumPercent", {"quorumPercent": 101}),
    ],
)
def test_bad_terms_are_refused(world: World, what: str, terms: dict[str, Any]) -> None:
    with pytest.raises(Reverted, match=f"BadTerms\\({what}\\)"):
        world.create(**terms)


def test_a_job_is_funded_by_anyone_in_the_chains_own_coin(world: World) -> None:
    job = world.create(funds=100)
    world.rewards.send(world.stranger, "fundJob", job, 0, value=23)
    assert world.job(job)["budget"] == 123 == world.evm.balance(world.rewards.address)
    with pytest.raises(Reverted, match="NoSuchJob"):
        world.rewards.send(world.stranger, "fundJob", job + 1, 0, value=1)


def test_a_token_that_keeps_a_part_counts_for_what_came(world: World) -> None:
    coin = token(world.evm, world.owner, world.rewards.address, fee=1)
    job = world.create(funds=1000, token=coin.address)
    assert world.job(job)["budget"] == 990
    with pytest.raises(Reverted, match="BadTerms"):
        world.rewards.send(world.owner, "fundJob", job, 10, value=1)
    world.rewards.send(world.owner, "fundJob", job, 100)
    assert world.job(job)["budget"] == 1089 == coin.ask("balanceOf", world.rewards.address)


def test_units_are_recorded_once_and_pushed(world: World) -> None:
    job = world.create(mode=UNITS, price=3)
    one, two = world.nodes[:2]
    send = world.rewards.send
    send(world.coordinator, "submitContribution", job, 1, 0, one, 10)
    with pytest.raises(Reverted, match="WrongBatch"):
        send(world.coordinator, "submitContribution", job, 1, 0, one, 10)
    send(world.coordinator, "submitContributions", job, 2, 1, packed((one, 5), (two, 7)))
    with pytest.raises(Reverted, match="EpochGoesBack"):
        send(world.coordinator, "submitContribution", job, 1, 2, one, 10)
    with pytest.raises(Reverted, match="NotAllowed"):
        send(world.stranger, "submitContribution", job, 2, 2, one, 10)
    with pytest.raises(Reverted, match="NotAllowed"):
        send(world.stranger, "submitContributions", job, 2, 2, [])
    assert world.rewards.ask("calculateRewards", job, one) == 45
    assert world.rewards.ask("getNodeMetrics", job, one) == (15, 2, 2, 0)
    before = [world.evm.balance(node) for node in (one, two)]
    send(world.stranger, "distributePayments", job, [one, two, one])
    assert [world.evm.balance(node) for node in (one, two)] == [before[0] + 45, before[1] + 21]
    send(world.stranger, "distributePayments", job, [one, two])
    assert world.job(job)["paid"] == 66 == world.job(job)["committed"]
    assert world.rewards.ask("getNodeMetrics", job, two) == (7, 1, 2, 21)


def test_units_stay_within_budget_and_cap(world: World) -> None:
    job = world.create(funds=2500, mode=UNITS, price=1, epochCap=1000, epochSeconds=1000)
    node = world.nodes[0]
    with pytest.raises(Reverted, match="OverEpochCap"):
        world.rewards.send(world.coordinator, "submitContribution", job, 1, 0, node, 1001)
    world.rewards.send(world.coordinator, "submitContribution", job, 1, 0, node, 1000)
    with pytest.raises(Reverted, match="OverEpochCap"):
        world.rewards.send(world.coordinator, "submitContribution", job, 1, 1, node, 1)
    world.evm.wait(5000)
    with pytest.raises(Reverted, match="OverBudget"):
        world.rewards.send(world.coordinator, "submitContribution", job, 2, 1, node, 1501)
    world.rewards.send(world.coordinator, "submitContribution", job, 2, 1, node, 1500)
    assert world.rewards.ask("released", job) == 6000


def test_amounts_that_do_not_fit_are_refused(world: World) -> None:
    job = world.create(mode=UNITS, price=MAX128, epochCap=MAX128)
    with pytest.raises(Reverted, match="OverBudget"):
        world.rewards.send(world.coordinator, "submitContribution", job, 1, 0, world.nodes[0], (1 << 96) - 1)


def test_a_receiver_that_refuses_holds_up_nobody(world: World) -> None:
    proud = world.evm.deploy(for_tests("Stubborn"))
    job = world.create(mode=UNITS, price=1)
    one = world.nodes[0]
    world.rewards.send(
        world.coordinator, "submitContributions", job, 1, 0, packed((proud.address, 9), (one, 4))
    )
    before = world.evm.balance(one)
    world.rewards.send(world.stranger, "distributePayments", job, [proud.address, one])
    assert world.evm.balance(one) == before + 4
    assert world.rewards.ask("owed", NOBODY, proud.address) == 9
    withdraw = REWARDS["withdraw"].call(NOBODY, world.nodes[3])
    before = world.evm.balance(world.nodes[3])
    proud.send(world.owner, "act", world.rewards.address, withdraw)
    assert world.evm.balance(world.nodes[3]) == before + 9
    with pytest.raises(Reverted, match="NothingToDo"):
        world.rewards.send(one, "withdraw", NOBODY, one)


def test_a_token_that_refuses_a_receiver_holds_up_nobody(world: World) -> None:
    coin = token(world.evm, world.owner, world.rewards.address)
    job = world.create(mode=UNITS, price=1, token=coin.address)
    one, two = world.nodes[:2]
    coin.send(world.owner, "refuse", one)
    world.rewards.send(world.coordinator, "submitContributions", job, 1, 0, packed((one, 9), (two, 4)))
    world.rewards.send(world.stranger, "distributePayments", job, [one, two])
    assert (coin.ask("balanceOf", one), coin.ask("balanceOf", two)) == (0, 4)
    assert world.rewards.ask("owed", coin.address, one) == 9
    world.rewards.send(one, "withdraw", coin.address, world.nodes[4])
    assert coin.ask("balanceOf", world.nodes[4]) == 9


def test_a_withdrawal_that_fails_stays(world: World) -> None:
    proud, other = world.evm.deploy(for_tests("Stubborn")), world.evm.deploy(for_tests("Stubborn"))
    job = world.create(mode=UNITS, price=1)
    world.rewards.send(world.coordinator, "submitContribution", job, 1, 0, proud.address, 9)
    world.rewards.send(world.stranger, "distributePayments", job, [proud.address])
    with pytest.raises(Reverted, match="failed"):
        proud.send(world.owner, "act", world.rewards.address, REWARDS["withdraw"].call(NOBODY, other.address))
    assert world.rewards.ask("owed", NOBODY, proud.address) == 9


def test_vouchers_pay_what_the_coordinator_signed_once(world: World) -> None:
    signer = Account(KEYS[0])
    job = world.create(mode=VOUCHERS, coordinator=signer.address)
    one, two = world.nodes[:2]

    def voucher(node: str, amount: int, by: Account = signer, epoch: int = 1) -> tuple[str, int, int, bytes]:
        return node, amount, epoch, sign_voucher(world, by, job, node, amount, epoch)

    before = world.evm.balance(one)
    world.rewards.send(world.stranger, "redeemVoucher", job, voucher(one, 50))
    assert world.evm.balance(one) == before + 50
    with pytest.raises(Reverted, match="NothingDue"):
        world.rewards.send(world.stranger, "redeemVoucher", job, voucher(one, 50))
    with pytest.raises(Reverted, match="BadSignature"):
        world.rewards.send(world.stranger, "redeemVoucher", job, voucher(one, 60, Account(KEYS[1])))
    forged = (two, 70, 1, voucher(one, 70)[3])
    with pytest.raises(Reverted, match="BadSignature"):
        world.rewards.send(world.stranger, "redeemVoucher", job, forged)
    many = [voucher(one, 50), voucher(one, 80, epoch=2), voucher(two, 30), voucher(two, 30)]
    world.rewards.send(world.stranger, "redeemVouchers", job, many)
    assert world.rewards.ask("paidTo", job, one) == 80 and world.rewards.ask("paidTo", job, two) == 30
    assert world.job(job)["paid"] == world.job(job)["committed"] == 110
    with pytest.raises(Reverted, match="OverEpochCap"):
        world.rewards.send(world.stranger, "redeemVoucher", job, voucher(one, 80 + 891))
    world.evm.wait(30_000)
    with pytest.raises(Reverted, match="OverBudget"):
        world.rewards.send(world.stranger, "redeemVoucher", job, voucher(one, 80 + 9_891))


def test_a_job_has_one_way_to_pay(world: World) -> None:
    units, roots = world.create(mode=UNITS, price=1), world.create(mode=ROOTS)
    signer, node = Account(KEYS[0]), world.nodes[0]
    vouchers = world.create(mode=VOUCHERS, coordinator=world.coordinator)
    send, by = world.rewards.send, world.coordinator
    for job in (roots, vouchers):
        with pytest.raises(Reverted, match="WrongMode"):
            send(by, "submitContribution", job, 1, 0, node, 1)
        with pytest.raises(Reverted, match="WrongMode"):
            send(by, "distributePayments", job, [node])
    for job in (units, vouchers):
        with pytest.raises(Reverted, match="WrongMode"):
            send(by, "submitEpochRoot", job, 1, b"\1" * 32, 1, b"\1" * 32)
        for call in (("claim", job, 1, node, 1, []), ("claimMany", job, 1, []), ("depositBond", job)):
            with pytest.raises(Reverted, match="WrongMode"):
                send(by, *call)
    for job in (units, roots):
        signature = sign_voucher(world, signer, job, node, 1, 1)
        with pytest.raises(Reverted, match="WrongMode"):
            send(by, "redeemVoucher", job, (node, 1, 1, signature))
        with pytest.raises(Reverted, match="WrongMode"):
            send(by, "redeemVouchers", job, [])


def test_closing_gives_back_what_was_never_committed_and_no_more(world: World) -> None:
    job = world.create(funds=1000, mode=UNITS, price=1)
    one = world.nodes[0]
    world.rewards.send(world.coordinator, "submitContribution", job, 1, 0, one, 300)
    with pytest.raises(Reverted, match="NotAllowed"):
        world.rewards.send(world.stranger, "closeJob", job)
    with pytest.raises(Reverted, match="JobIsOpen"):
        world.rewards.send(world.owner, "sweepJob", job)
    assert dict(world.rewards.send(world.owner, "closeJob", job))["JobClosed"]["refund"] == 700
    for call in (("closeJob", job), ("sweepJob", job)):
        with pytest.raises(Reverted, match=r"JobIsClosed|TooEarly"):
            world.rewards.send(world.owner, *call)
    for call in (("submitContribution", job, 1, 1, one, 1), ("fundJob", job, 0)):
        with pytest.raises(Reverted, match="JobIsClosed"):
            world.rewards.send(world.coordinator, *call)
    world.rewards.send(world.stranger, "distributePayments", job, [one])
    world.evm.wait(DAY)
    world.rewards.send(world.stranger, "sweepJob", job)
    assert world.evm.balance(world.rewards.address) == 0


def test_what_nobody_claims_goes_back_after_the_claim_period_and_others_money_stays(world: World) -> None:
    other = world.create(funds=5000)
    job = world.create(funds=1000, mode=UNITS, price=1)
    one = world.nodes[0]
    world.rewards.send(world.coordinator, "submitContribution", job, 1, 0, one, 300)
    world.rewards.send(world.owner, "closeJob", job)
    world.evm.wait(DAY)
    assert dict(world.rewards.send(world.stranger, "sweepJob", job))["JobSwept"]["refund"] == 300
    with pytest.raises(Reverted, match="NothingToDo"):
        world.rewards.send(world.stranger, "sweepJob", job)
    with pytest.raises(Reverted, match="JobIsClosed"):
        world.rewards.send(world.stranger, "distributePayments", job, [one])
    assert world.evm.balance(world.rewards.address) == 5000 == world.job(other)["budget"]


def test_signed_vouchers_keep_the_whole_budget_until_the_claim_period_is_over(world: World) -> None:
    signer, one = Account(KEYS[0]), world.nodes[0]
    job = world.create(funds=1000, mode=VOUCHERS, coordinator=signer.address)
    assert dict(world.rewards.send(world.owner, "closeJob", job))["JobClosed"]["refund"] == 0
    signature = sign_voucher(world, signer, job, one, 400, 1)
    world.rewards.send(world.stranger, "redeemVoucher", job, (one, 400, 1, signature))
    world.evm.wait(DAY)
    world.rewards.send(world.stranger, "sweepJob", job)
    late = sign_voucher(world, signer, job, one, 500, 1)
    with pytest.raises(Reverted, match=r"OverBudget|JobIsClosed"):
        world.rewards.send(world.stranger, "redeemVoucher", job, (one, 500, 1, late))
    assert world.evm.balance(world.rewards.address) == 0


def test_no_reentrance_is_paid_twice(world: World) -> None:
    world.create(funds=5000)
    thief = world.evm.deploy(for_tests("Reenterer"))
    job = world.create(mode=UNITS, price=1)
    world.rewards.send(world.coordinator, "submitContribution", job, 1, 0, thief.address, 400)
    thief.send(
        world.owner, "arm", world.rewards.address, REWARDS["distributePayments"].call(job, [thief.address])
    )
    world.rewards.send(world.stranger, "distributePayments", job, [thief.address])
    assert not thief.ask("succeeded")
    assert world.evm.balance(thief.address) + world.rewards.ask("owed", NOBODY, thief.address) == 400


def test_an_owner_that_refuses_its_refund_finds_it_later(world: World) -> None:
    proud = world.evm.deploy(for_tests("Stubborn"))
    terms = (UNITS, world.coordinator, world.arbiter, NOBODY, 0, 1000, 1000, 0, 0, DAY, 0, 0, 1)
    proud.send(world.owner, "act", world.rewards.address, REWARDS["createJob"].call(terms), value=500)
    job = world.rewards.ask("jobCount")
    proud.send(world.owner, "act", world.rewards.address, REWARDS["closeJob"].call(job))
    assert world.rewards.ask("owed", NOBODY, proud.address) == 500
