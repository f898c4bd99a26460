"""Options that several commands share are parsed as if each had written them out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from shoal.apps.option_groups import LogPlace, RunLog, grouped

app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class Needed:
    out: Annotated[Path, typer.Option(help="Needed.")]


@app.command()
@grouped
def first(asked: RunLog, count: Annotated[int, typer.Option(min=1)] = 3) -> None:
    """The first."""
    print(asked.run, asked.home, asked.store, asked.node, asked.file, asked.as_json, count)


@app.command()
@grouped
def second(who: Annotated[str, typer.Argument()], place: LogPlace, needed: Needed) -> None:
    """The second."""
    print(who, place.node, needed.out)


def said(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output.strip()


def test_fields_are_options_with_their_defaults_and_arguments_keep_their_place() -> None:
    assert said("first") == "None None False None False 3"
    given = said("first", "abc", "--home", "/h", "--store", "s", "--node", "--json", "--count", "5")
    assert given == "abc /h s True None True 5"
    assert said("second", "me", "--out", "o", "--node") == "me True o"


@pytest.mark.parametrize("arguments", [["second", "me"], ["second", "--out", "o"], ["first", "--count", "0"]])
def test_what_is_missing_or_out_of_range_is_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_help_shows_every_option() -> None:
    shown = said("first", "--help")
    for option in ("--home", "--store", "--node", "--file", "--json", "--count"):
        assert option in shown
