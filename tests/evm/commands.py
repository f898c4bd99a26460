"""`shoal chain` as tests call it, in a home that is a coordinator's and a node's in one."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from shoal.apps.cli import app, find
from shoal.base.errors import ShoalError
from shoal.chain.payouts import state_payout
from shoal.chain.rpc import Rpc
from shoal.chain.signing import Account
from shoal.runlog.files import FileLogStore
from shoal.worlds.real.disk import FileDisk
from shoal.worlds.real.sqlstore import SqlLogStore

from .settling import COIN, COORDINATOR, KEY, NODES, RUN, WEI, address_of, log_of

ENTRIES = log_of(4)
NODE_KEY = b"\x21" * 32


def make_home(folder: Path, url: str) -> None:
    """A log at the coordinator and at a node, and wallets with money."""
    rpc = Rpc([url])
    for key in (KEY, NODE_KEY):
        rpc.call("anvil_setBalance", Account(key).address, hex(1000 * COIN))
    for name, identity in (("coordinator", COORDINATOR), ("node", NODES[0])):
        path = folder / name / "key"
        path.parent.mkdir()
        path.write_text(identity.secret.hex() + "\n")
        path.chmod(0o600)
    with closing(SqlLogStore(f"sqlite:///{folder}/coordinator/store.sqlite")) as store:
        for position, entry in enumerate(ENTRIES):
            store.append(RUN, position, entry)
    copy = FileLogStore(FileDisk(folder / "node" / "runs" / RUN), lambda point: None)
    for position, entry in enumerate(ENTRIES):
        copy.append(RUN, position, entry)


def run(home: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["chain", *arguments, "--home", str(home)])


def said(home: Path, *arguments: str) -> Any:
    result = run(home, *arguments, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.output.strip().splitlines()[-1])


def code(result: Any) -> str:
    found = find(result.exception, ShoalError)
    assert isinstance(found, ShoalError), (result.output, result.exception)
    return found.code


def founded(home: Path, url: str, *options: str) -> None:
    said(home, "deploy", "--url", url)
    said(home, "job", "--wei-per-micro", str(WEI), *options)
    state_addresses(home)


def state_addresses(home: Path) -> None:
    lines = [state_payout(node, RUN, address_of(place)) for place, node in enumerate(NODES[1:4], 1)]
    lines.append(run(home, "payout", address_of(0)).output.strip())
    assert run(home, "pay", *lines).exit_code == 0


def records(home: Path) -> list[Path]:
    assert run(home, "records", "--out", str(home / "records")).exit_code == 0
    return sorted((home / "records").iterdir())
