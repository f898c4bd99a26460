"""The command's table, and how failures reach a person."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.apps import cli
from shoal.base.errors import ShoalError

from .serving import Serving, serving


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with serving(tmp_path_factory.mktemp("home"), recipe="digits") as found:
        yield found


def _shoal(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    return int(ended.value.code or 0)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom shoal.apps.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(m for m in ('torch', 'transformers', 'fastapi', 'sqlalchemy') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("[]\n"), done
    assert all(name in done.stdout for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "what", "help_of"),
    [
        (["nonsense"], "nonsense", "shoal --help"),
        (["--nonsense"], "--nonsense", "shoal --help"),
        (["run", "nonsense"], "nonsense", "shoal run --help"),
        (["run", "show"], "run", "shoal run show --help"),
        (["run", "export", "abc", ""], "it is empty", "shoal run export --help"),
        (["serve", "--port", "x"], "--port", "shoal serve --help"),
    ],
)
def test_a_wrong_command_line_is_status_2(
    arguments: list[str], what: str, help_of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _shoal(*arguments) == 2
    code, cause, next_step = capsys.readouterr().err.splitlines()
    assert "SH-CLI-01" in code and what in cause and help_of in next_step


def test_a_group_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert _shoal("run") == 2
    shown = capsys.readouterr()
    assert "submit" in shown.out + shown.err and "SH-CLI-01" not in shown.err


def test_an_error_is_three_short_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _shoal("run", "list", "--server", "http://127.0.0.1:1", "--home", str(tmp_path)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "SH-API-04" in lines[0]
    assert "shoal serve" in lines[2]


@pytest.mark.parametrize(
    ("setting", "code"), [("budget.rounds", "SH-RECIPE-02"), ("budget.rounds=[", "SH-RECIPE-01")]
)
def test_a_change_that_cannot_be_read_is_never_sent(
    setting: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        _shoal("run", "change", "abc", setting, "--server", "http://127.0.0.1:1", "--home", str(tmp_path))
        == 1
    )
    shown = capsys.readouterr().err
    assert code in shown and "budget.rounds" in shown


def test_an_error_is_found_inside_groups() -> None:
    inner = ShoalError("SH-SERVE-01", "taken", "free it")
    group = BaseExceptionGroup("all", [ValueError(), ExceptionGroup("some", [KeyError(), inner])])
    assert cli.find(group, ShoalError) is inner
    assert cli.find(group, KeyboardInterrupt) is None


def test_submit_list_show_ticket_stop(
    coordinator: Serving, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(coordinator.home.root))
    assert _shoal("run", "submit", "digits", "--set", "seed=9", "--set", "name=mine", "--json") == 0
    submitted = json.loads(capsys.readouterr().out)
    assert submitted["ticket"].startswith("shoal1-")
    prefix = submitted["run"][:8]

    assert _shoal("run", "list") == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split("\t")[:3] == ["run", "name", "state"]
    assert sorted(row.split("\t")[1] for row in rows) == ["digits", "mine"]

    assert _shoal("run", "show", prefix) == 0
    assert submitted["run"] in capsys.readouterr().out
    assert _shoal("run", "ticket", prefix, "--expires", "1h") == 0
    assert capsys.readouterr().out.startswith("shoal join shoal1-")
    assert _shoal("run", "stop", prefix, "--reason", "enough", "--json") == 0
    assert json.loads(capsys.readouterr().out)["stopped"] == "enough"


def test_a_broken_recipe_never_reaches_the_coordinator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("name: x\nmodel: {kind: gpt, layers: none}\n")
    assert _shoal("run", "submit", str(recipe), "--server", "http://127.0.0.1:1") == 1
    said = capsys.readouterr().err
    assert "SH-RECIPE-02" in said
    assert "model.layers" in said and "mine.yaml" in said


def test_a_fingerprint_is_of_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _shoal("sim", "chaos", "--fingerprint") == 2
    assert "--seed" in capsys.readouterr().err


def test_a_wrong_token_and_a_token_file_open_to_others(
    coordinator: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--server", coordinator.address, "--home", str(tmp_path)]
    assert _shoal("run", "list", *where) == 1
    assert "SH-API-01" in capsys.readouterr().err
    open_file = tmp_path / "token"
    open_file.write_text(coordinator.token)
    open_file.chmod(0o644)
    assert _shoal("run", "list", *where, "--token-file", str(open_file)) == 1
    told = capsys.readouterr().err
    assert "SH-KEY-01" in told and "ask whoever gave it to you" in told and "delete" not in told
    open_file.chmod(0o600)
    assert _shoal("run", "list", *where, "--token-file", str(open_file)) == 0
