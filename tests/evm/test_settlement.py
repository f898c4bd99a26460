"""Settling on a real chain: killed, cut off, rolled back, out of money, and with a wrong key or a lying RPC."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal.base.errors import ShoalError
from shoal.chain.anvil import Anvil
from shoal.chain.outbox import FINAL, MINED, PENDING, SqlOutbox
from shoal.chain.rpc import Rpc
from shoal.chain.sender import Call, Sender
from shoal.chain.settlement import Progress, Settlement
from shoal.chain.signing import Account

from .proxy import lying_rpc
from .settling import COIN, KEY, RUN, Office, address_of, local_chain, log_of, open_office


@pytest.fixture
def office(anvil: Anvil, tmp_path: Path) -> Office:
    return open_office(tmp_path, anvil.url, log_of(12))


class Clock:
    """Time by the test's hand: every step is a second."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def tick(office: Office, settlement: Settlement, clock: Clock) -> Progress:
    """A step and a block: the chain keeps up with the test's clock, however slow the machine is."""
    progress = settlement.step(clock())
    Rpc([office.url]).call("evm_mine")
    return progress


def settle(office: Office, settlement: Settlement, clock: Clock, steps: int = 40) -> Progress:
    for _ in range(steps):
        progress = tick(office, settlement, clock)
        if progress.done:
            break
    return progress


def check_settled(office: Office, epochs: int) -> None:
    """Every epoch once, and the last record is what the log gives, to the unit."""
    settlement, outbox = office.settlement()
    records = settlement.records
    assert [record.epoch for record in records] == list(range(1, epochs + 1))
    assert records[-1].amounts == office.earned()
    view = office.view()
    job = office.config.jobs[RUN].job
    assert view.job(job)["epoch"] == epochs
    assert view.job(job)["committed"] == sum(office.earned().values())
    assert view.root(job, epochs) == records[-1].tree().root
    outbox.close()


def claim_all(office: Office) -> dict[str, int]:
    """Claim for everybody, as anyone can; what they have afterwards."""
    settlement, outbox = office.settlement()
    record = settlement.records[-1]
    tree, rpc, view = record.tree(), Rpc([office.url]), office.view()
    claims = [(address, amount, tree.proof(address)) for address, amount in record.amounts.items()]
    stranger = rpc.call("eth_accounts")[3]
    data = view.interface["claimMany"].call(record.job, record.epoch, claims)
    request = {"from": stranger, "to": office.config.rewards, "data": "0x" + data.hex(), "gas": hex(10**6)}
    assert rpc.call("eth_sendTransactionSync", request)["status"] == "0x1"
    outbox.close()
    return {address: int(rpc.call("eth_getBalance", address, "latest"), 16) for address in record.amounts}


def test_every_epoch_is_settled_and_claimed_to_the_unit(office: Office) -> None:
    settlement, outbox = office.settlement()
    settlement.check()
    progress = settle(office, settlement, Clock())
    assert (progress.settled, progress.waiting) == (12, None)
    check_settled(office, 12)
    assert claim_all(office) == office.earned()
    outbox.close()


def test_a_new_process_goes_on_where_the_last_one_was(office: Office) -> None:
    clock = Clock()
    for _ in range(30):
        settlement, outbox = office.settlement()
        tick(office, settlement, clock)
        outbox.close()
    check_settled(office, 12)
    outbox = SqlOutbox(office.store_url)
    assert len(outbox.find(Account(KEY).address, "root.")) == 12
    outbox.close()


@pytest.mark.parametrize(("longer", "state"), [(0, MINED), (1, FINAL)])
def test_what_the_chain_forgot_is_sent_again(office: Office, longer: int, state: str) -> None:
    settlement, outbox = office.settlement()
    clock, rpc = Clock(), Rpc([office.url])
    rpc.call("evm_setAutomine", False)
    settle(office, settlement, clock)
    for _ in range(longer):
        tick(office, settlement, clock)
    items = outbox.find(Account(KEY).address, "root.")
    before = {item.key: item.hashes for item in items}
    assert items[-1].state == state
    rpc.call("anvil_rollback", 2 + longer)
    assert office.view().job(office.config.jobs[RUN].job)["epoch"] < 12
    assert settle(office, settlement, clock).settled == 12
    assert {item.key: item.hashes for item in outbox.find(Account(KEY).address, "root.")} == before
    check_settled(office, 12)
    outbox.close()


def test_an_rpc_that_is_gone_loses_nothing(anvil_program: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with Anvil(anvil_program, state=state) as anvil:
        office = open_office(tmp_path, anvil.url, log_of(5))
        settlement, outbox = office.settlement()
        clock = Clock()
        settlement.step(clock())
        anvil.stop()
        with pytest.raises(ShoalError) as caught:
            settlement.step(clock())
        assert caught.value.code == "SH-CHAIN-04"
        anvil.start()
        assert settle(office, settlement, clock).settled == 5
        check_settled(office, 5)
        outbox.close()


def test_the_second_url_is_used_when_the_first_is_dead(office: Office) -> None:
    rpc = Rpc(["http://127.0.0.1:9", office.url], timeout_s=2)
    assert int(rpc.call("eth_chainId"), 16) == office.config.chain.chain_id
    assert "127.0.0.1:9" in str(_error(lambda: Rpc(["http://127.0.0.1:9/secret-key"]).call("eth_chainId")))
    assert "secret-key" not in str(_error(lambda: Rpc(["http://127.0.0.1:9/secret-key"]).call("eth_chainId")))


def _error(call: object) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        call()  # type: ignore[operator]
    return caught.value


def test_a_transaction_that_waits_is_offered_for_more(office: Office) -> None:
    settlement, outbox = office.settlement()
    rpc, clock = Rpc([office.url]), Clock()
    rpc.call("evm_setAutomine", False)
    settlement.step(clock())
    rpc.call("anvil_setNextBlockBaseFeePerGas", hex(8 * 10**9))  # more than was offered
    rpc.call("evm_mine")
    (item,) = outbox.find(Account(KEY).address, "root.")
    assert item.state == PENDING and item.max_fee < 7 * 10**9
    for _ in range(3):
        settlement.step(clock())
    item = outbox.find(Account(KEY).address, "root.")[0]
    assert len(item.raws) == len(item.hashes) > 2 and item.max_fee > 8 * 10**9
    rpc.call("evm_mine")
    rpc.call("evm_setAutomine", True)
    assert settle(office, settlement, clock, 60).settled == 12
    assert len(outbox.find(Account(KEY).address, "root.")) == 12
    check_settled(office, 12)
    outbox.close()


def test_a_nonce_that_somebody_else_used_is_replaced(office: Office) -> None:
    settlement, outbox = office.settlement()
    rpc, clock = Rpc([office.url]), Clock()
    rpc.call("evm_setAutomine", False)
    settlement.step(clock())  # epoch 1 is signed and sent, and not mined
    rpc.call("anvil_dropAllTransactions")
    rpc.call("anvil_impersonateAccount", Account(KEY).address)
    rpc.call("evm_setAutomine", True)
    for _ in range(4):
        rpc.call(
            "eth_sendTransactionSync", {"from": Account(KEY).address, "to": address_of(9), "value": "0x1"}
        )
    assert settle(office, settlement, clock, 60).settled == 12
    check_settled(office, 12)
    outbox.close()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"chain": "other"}, "SH-CHAIN-05"),
        ({"genesis": "0x" + "0" * 64}, "SH-CHAIN-05"),
        ({"rewards": "0x" + "12" * 20}, "SH-CHAIN-07"),
    ],
)
def test_another_chain_or_no_contract_is_refused_before_anything_is_signed(
    office: Office, change: dict[str, str], code: str
) -> None:
    if "chain" in change:
        office.config = msgspec.structs.replace(office.config, chain=local_chain(office.url, chain_id=143))
    else:
        office.config = msgspec.structs.replace(office.config, **change)
    settlement, outbox = office.settlement()
    assert _error(settlement.check).code == code
    assert outbox.find(Account(KEY).address, "root.") == []
    outbox.close()


def test_an_rpc_that_lies_about_its_chain_is_found_out(office: Office) -> None:
    """The contract computes with the chain's real id, whatever the RPC says it is."""
    with lying_rpc(office.url, {"eth_chainId": hex(143)}) as url:
        office.url = url
        office.config = msgspec.structs.replace(office.config, chain=local_chain(url, chain_id=143))
        settlement, outbox = office.settlement()
        error = _error(settlement.check)
        assert error.code == "SH-CHAIN-05" and "another chain id" in error.cause
        assert outbox.find(Account(KEY).address, "root.") == []
        outbox.close()


def test_an_empty_wallet_is_told_and_what_is_due_is_kept(office: Office) -> None:
    rpc = Rpc([office.url])
    rpc.call("anvil_setBalance", Account(KEY).address, "0x1")
    settlement, outbox = office.settlement()
    error = _error(lambda: settlement.step(1.0))
    assert error.code == "SH-CHAIN-08" and Account(KEY).address in error.cause
    rpc.call("anvil_setBalance", Account(KEY).address, hex(COIN))
    assert settle(office, settlement, Clock()).settled == 12
    outbox.close()


def test_a_job_without_money_waits_for_it(anvil: Anvil, tmp_path: Path) -> None:
    office = open_office(tmp_path, anvil.url, log_of(4))
    rich = sum(office.earned().values())
    terms = office.config.jobs[RUN]
    office.config = office.config.with_job(
        RUN, msgspec.structs.replace(terms, wei_per_micro=10 * COIN // rich)
    )
    settlement, outbox = office.settlement()
    waiting = settle(office, settlement, Clock(), 10)
    assert waiting.waiting is not None and waiting.waiting.code == "SH-CHAIN-09"
    assert "budget" in waiting.waiting.cause and not waiting.done
    outbox.close()


def test_somebody_elses_job_is_refused(office: Office) -> None:
    outbox = SqlOutbox(office.store_url)
    sender = Sender(Rpc([office.url]), office.config.chain, Account(b"\1" * 32), outbox)
    mine, opened = office.settlement()
    mine._sender = sender
    assert _error(mine.check).code == "SH-CHAIN-09"
    outbox.close()
    opened.close()


def test_a_call_that_the_contract_refuses_is_never_signed(office: Office) -> None:
    outbox = SqlOutbox(office.store_url)
    sender = Sender(Rpc([office.url]), office.config.chain, Account(KEY), outbox)
    view = office.view()
    data = view.interface["submitEpochRoot"].call(1, 7, b"\1" * 32, 1, b"\1" * 32)
    call = Call(key="wrong", to=office.config.rewards, data=data, interface=view.interface)
    error = _error(lambda: sender.post([call]))
    assert error.code == "SH-CHAIN-10" and "WrongEpoch(7, 1)" in error.cause
    assert "wrong" not in outbox.keys(Account(KEY).address)
    outbox.close()


def test_two_processes_for_one_wallet_are_told(office: Office) -> None:
    first, second = SqlOutbox(office.store_url), SqlOutbox(office.store_url)
    item = first.find(Account(KEY).address)[0]
    fresh = msgspec.structs.replace(item, key="new", nonce=900)
    first.add(Account(KEY).address, [fresh])
    assert _error(lambda: second.add(Account(KEY).address, [fresh])).code == "SH-LOG-03"
    assert item.state in (PENDING, FINAL, "mined")
    first.close()
    second.close()
