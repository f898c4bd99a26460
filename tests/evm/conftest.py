"""One real EVM for a session; every test begins on the same chain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.chain.anvil import Anvil, find_anvil

from .commands import make_home
from .coverage import OPTIONS, watcher
from .evm import Evm
from .jobs import World, make_world
from .settling import KEY


@pytest.fixture(scope="session")
def anvil_program() -> Path:
    found = find_anvil(Path("/nonexistent"))
    assert found is not None, "there is no anvil: run `npm install --prefix contracts --no-package-lock`"
    return found


@pytest.fixture(scope="session")
def chain(anvil_program: Path) -> Iterator[World]:
    with Anvil(anvil_program, accounts=20, options=OPTIONS) as anvil:
        evm = Evm(anvil.url)
        evm.watch = watcher(evm)
        yield make_world(evm)


@pytest.fixture
def world(chain: World) -> Iterator[World]:
    before = chain.evm.snapshot()
    yield chain
    chain.evm.back_to(before)


@pytest.fixture
def anvil(anvil_program: Path) -> Iterator[Anvil]:
    """A chain of the test's own."""
    with Anvil(anvil_program) as running:
        yield running


@pytest.fixture
def home(anvil: Anvil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A coordinator's home and a node's in one, and the coordinator's key in the environment."""
    monkeypatch.setenv("SHOAL_CHAIN_KEY", KEY.hex())
    make_home(tmp_path, anvil.url)
    return tmp_path
