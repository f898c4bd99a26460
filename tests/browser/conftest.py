"""One coordinator, three nodes and one chromium for all browser tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from process.fleet import Fleet, tiny

from .stage import PATIENT_MS, Looker, address_of, open_browser, token_of

NAMES = ("ada", "bob", "cleo")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A run in progress, whose rounds take a while, so that the page has time to show them."""
    calm = {"lease_s": 20.0, "heartbeat_s": 0.5, "reconnect_s": 5.0}
    recipe = tiny(inner={"batch_size": 64}, evaluation={"every": 1}, membership=calm)
    recipe["strategy"] = {**recipe["strategy"], "schedule": {"steps": 60}}
    recipe["audit"] = {"rate": 0.1}
    with Fleet(tmp_path_factory.mktemp("browser")) as started:
        started.serve(recipe)
        for name in NAMES:
            started.join(name)
        for name in NAMES:
            started.contributes(name, within_s=PATIENT_MS / 1000)
        yield started


@pytest.fixture
def looker(browser: Browser, fleet: Fleet) -> Iterator[Looker]:
    person = Looker(browser, address_of(fleet), token_of(fleet), viewport={"width": 1280, "height": 800})
    try:
        yield person
        assert person.complaints == []
    finally:
        person.close()


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "poem.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\n" * 2000)
    return path
