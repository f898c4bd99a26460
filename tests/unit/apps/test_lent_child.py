"""A process that a lent machine has on: begun for something, ended when that is not wanted any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.apps import lent_child
from shoal.apps.lent_child import LentChild

SERVES = ["serve", "--port", "0", "--control-port", "0", "--blob-port", "0", "--home"]
WRONG = ["no-such-command"]


def ends(child: LentChild) -> None:
    assert child._process is not None
    child._process.wait(120)


@pytest.fixture
def child() -> Iterator[LentChild]:
    made = LentChild()
    yield made
    made.end()


def test_it_goes_on_until_something_else_is_wanted(child: LentChild, tmp_path: Path) -> None:
    words = [*SERVES, str(tmp_path)]
    assert not child.tend("one", words) and child.is_on
    first = child._process
    assert not child.tend("one", None), "nothing to begin with, and it goes on"
    assert child._process is first and child.is_on
    child.tend("two", words)  # Asked to leave.
    ends(child)
    assert not child.tend("two", words), "it did not end by itself"
    assert child.is_on and child._process is not first
    child.tend(None, None)
    ends(child)
    child.tend(None, None)
    assert child._process is None


def test_one_that_fails_is_begun_again_later(child: LentChild, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent_child, "RETRY_S", 1000.0)
    child.tend("one", WRONG)
    ends(child)
    assert child.tend("one", WRONG), "it ended by itself"
    assert not child.tend("one", WRONG) and not child.is_on, "not yet"
    child.tend("two", WRONG)
    assert child.is_on, "something else is not made to wait"


def test_what_it_prints_as_json_is_heard() -> None:
    heard: list[dict[str, object]] = []
    child = LentChild(heard.append)
    child.tend("one", ["doctor", "--json"])
    ends(child)
    assert child._listening is not None
    child._listening.join(60)
    assert heard and all(isinstance(found, dict) for found in heard)
