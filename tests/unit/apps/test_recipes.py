"""The recipes that ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.apps.recipes import find_recipe, shipped
from shoal.base.errors import ShoalError
from shoal.strategy.recipe import load_recipe


def test_two_ship_at_least() -> None:
    assert {"stdlib-gpt", "digits"} <= set(shipped())


@pytest.mark.parametrize("name", sorted(shipped()))
def test_each_loads_and_bears_its_name(name: str) -> None:
    assert load_recipe(find_recipe(name), environment={}).name == name


def test_a_file_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe("digits") == shipped()["digits"]
    (tmp_path / "digits").write_text("name: mine")
    assert find_recipe("digits") == Path("digits")


def test_neither_file_nor_name() -> None:
    with pytest.raises(ShoalError, match="digits, stdlib-gpt") as caught:
        find_recipe("stdlib-gtp")
    assert caught.value.code == "SH-RECIPE-01"
