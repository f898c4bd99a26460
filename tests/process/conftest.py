"""Fleets for the tests of this folder, one for each module's needs; a failed test shows what everybody said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .fleet import TINY, Fleet
from .referee import end_run

_fleets: list[Fleet] = []


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """An empty fleet that a module's tests share."""
    with Fleet(tmp_path_factory.mktemp("fleet")) as made:
        _fleets.append(made)
        yield made
        _fleets.remove(made)


@pytest.fixture(scope="package")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A run in training that strangers and mistakes must not disturb, and whose log holds at the end. Its one node
    is slowed down by its uplink, to leave the processors to the tests."""
    with Fleet(tmp_path_factory.mktemp("training")) as made:
        _fleets.append(made)
        made.serve(TINY)
        made.join("steady", "--max-up", "4kB/s")
        made.contributes("steady")
        yield made
        made.nodes.pop("knocking", None)
        made.contributes("steady", after=made.length())
        end_run(made)
        _fleets.remove(made)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for made in _fleets:
            report.sections.append(("what the processes said", made.logs()))
