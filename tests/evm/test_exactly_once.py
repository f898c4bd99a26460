"""Every epoch is settled once, whatever dies: the settlement is killed, the RPC restarted, the chain rolled back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from shoal.chain.anvil import Anvil
from shoal.chain.config import write_config
from shoal.chain.outbox import SqlOutbox
from shoal.chain.rpc import Rpc
from shoal.chain.signing import Account
from shoal.worlds.real.sqlstore import SqlLogStore

from .proxy import Door
from .settling import KEY, RUN, Office, log_of, open_office
from .test_settlement import check_settled, claim_all

POINTS = (
    "ledger.page",
    "settlement.before-record",
    "settlement.record",
    "outbox.before-store",
    "outbox.stored",
    "outbox.sent",
)
CHILD = Path(__file__).with_name("settle_child.py")


def start_child(office: Office, failpoint: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "SHOAL_CHAIN_KEY": KEY.hex(), "SHOAL_FAILPOINT": failpoint}
    command = [sys.executable, str(CHILD), str(office.folder)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def end_of(child: subprocess.Popen[str]) -> int:
    said, _ = child.communicate(timeout=200)
    assert child.returncode in (0, -signal.SIGKILL), said
    return int(child.returncode)


def suffer(office: Office, door: Door, entries: list[bytes], seed: int, troubles: int) -> int:
    """Let the log grow, kill, roll back and cut off, in an order that a seed draws; how often it was killed."""
    chance, killed = random.Random(seed), 0
    rpc = Rpc([office.url])
    for trouble in range(troubles):
        grow(office, entries, (trouble + 1) * len(entries) // troubles)
        kind = chance.randrange(3)
        if kind == 0:
            rpc.call("anvil_rollback", 2)
        if kind == 1:
            door.shut()
        child = start_child(office, f"{POINTS[(seed + trouble) % len(POINTS)]}:{chance.randint(1, 3)}:KILL")
        if kind == 1:
            assert child.stdout is not None
            assert "SH-CHAIN-04" in child.stdout.readline()  # it says so, and goes on trying
            door.open()
        killed += end_of(child) != 0
    return killed


def grow(office: Office, entries: list[bytes], length: int) -> None:
    with closing(SqlLogStore(office.store_url)) as store:
        for position in range(store.length(office.run), length):
            store.append(office.run, position, entries[position])


@pytest.mark.parametrize(
    ("epochs", "troubles"), [(60, 6), pytest.param(200, 40, marks=pytest.mark.long)], ids=["some", "many"]
)
def test_every_epoch_once_and_every_claim_to_the_unit(
    anvil_program: Path, tmp_path: Path, epochs: int, troubles: int
) -> None:
    with Anvil(anvil_program) as anvil:
        entries = log_of(epochs)
        office = open_office(tmp_path, anvil.url, entries[:7])
        door = Door(anvil.url)
        chain = msgspec.structs.replace(office.config.chain, urls=(door.url,))
        write_config(tmp_path, msgspec.structs.replace(office.config, chain=chain))
        Rpc([anvil.url]).batch([("evm_mine", [])] * 3)
        assert suffer(office, door, entries, seed=epochs, troubles=troubles) >= troubles // 2
        Rpc([anvil.url]).call("anvil_rollback", 2)
        assert end_of(start_child(office)) == 0
        door.shut()
        check_settled(office, epochs)
        outbox = SqlOutbox(office.store_url)
        items = outbox.find(Account(KEY).address, f"root.{office.config.jobs[RUN].job}.")
        assert len({item.nonce for item in items}) == len(items)
        outbox.close()
        assert claim_all(office) == office.earned()
        # On the chain itself: one submission for each epoch, and no more.
        assert submissions(office) == list(range(1, epochs + 1))


def submissions(office: Office) -> list[int]:
    view = office.view()
    topic = next(t for t, event in view.interface.events.items() if event.name == "EpochRootSubmitted")
    query = {"address": office.config.rewards, "topics": [topic], "fromBlock": "0x0", "toBlock": "latest"}
    logs = Rpc([office.url]).call("eth_getLogs", query)
    return [view.interface.events[topic].read(log)["epoch"] for log in logs]
