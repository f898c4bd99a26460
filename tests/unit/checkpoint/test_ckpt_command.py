"""`shoal ckpt` from its command line: what it prints, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checkpoint.homes import make_home
from shoal.apps.cli import app


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("command"))


def ckpt(home: Path, *arguments: str) -> Any:
    done = CliRunner().invoke(app, ["ckpt", *arguments, "--home", str(home)])
    assert done.exit_code == 0, done.output
    return done.stdout


def told(home: Path, *arguments: str) -> Any:
    return json.loads(ckpt(home, *arguments, "--json").strip().splitlines()[-1])


def test_fork_merge_list_and_show(home: Path, tmp_path: Path) -> None:
    (root,) = told(home, "list")["vertices"]
    fork = told(home, "fork", root["id"][:8], "--set", "inner.lr=0.2", "--name", "other way")
    merged = told(home, "merge", root["id"], fork["vertex"], "--weight", "1", "--weight", "3")
    assert merged["parents"] == [root["id"], fork["vertex"]] and merged["kind"] == "merge"
    graph = told(home, "list")
    assert [v["kind"] for v in graph["vertices"]] == ["genesis", "fork", "merge"]
    assert graph["heads"] == [merged["vertex"]] and graph["absent"] == []
    assert told(home, "show", merged["vertex"])["weights"] == [0.25, 0.75]
    ckpt(home, "list", "--svg", str(tmp_path / "dag.svg"))
    assert (tmp_path / "dag.svg").read_text().count("<circle") == 3
    assert "other way" in ckpt(home, "list")
    assert told(home, "diff", root["id"], fork["vertex"])["same_model"]
    assert "bit for bit" in ckpt(home, "diff", root["id"], fork["vertex"])


def test_pin_prune_and_verify(home: Path) -> None:
    root = told(home, "list")["vertices"][0]
    assert told(home, "pin", root["id"])["pinned"]
    assert told(home, "list")["vertices"][0]["pinned"]
    assert told(home, "prune", "--dry-run")["removed"] == []
    assert not told(home, "pin", root["id"], "--off")["pinned"]
    assert told(home, "verify", root["id"])["quorum"]
    whole = told(home, "verify")
    assert whole["ok"] and whole["files"] > 3 and whole["damaged"] == []


def test_what_is_not_there_has_a_code(home: Path) -> None:
    done = CliRunner().invoke(app, ["ckpt", "show", "ffffffff", "--home", str(home)])
    assert "SH-CKPT-01" in str(done.exception)
