"""The deployment files hold together: they parse, and what they name exists."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from shoal.apps.api.metrics import exposition
from shoal.apps.api.models import RunStatus
from shoal.apps.cli import COMMANDS, LazyCommand

DEPLOY = Path(__file__).parents[3] / "deploy"
ROOT = DEPLOY.parent
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DOCKERFILES = sorted((DEPLOY / "docker").glob("*.Dockerfile"))
INSTRUCTIONS = {
    "FROM",
    "WORKDIR",
    "COPY",
    "RUN",
    "USER",
    "ENV",
    "VOLUME",
    "EXPOSE",
    "HEALTHCHECK",
    "ENTRYPOINT",
}


def options_of(command: str) -> set[str]:
    loaded = LazyCommand(command, COMMANDS[command]).load()
    return {name for parameter in loaded.params for name in parameter.opts}


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.y*ml")), ids=lambda path: path.name)
def test_yaml_parses(path: Path) -> None:
    assert all(isinstance(part, dict) for part in yaml.safe_load_all(path.read_text()))


def test_the_compose_file_names_files_that_exist() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service in services.values():
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), volume


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile(path: Path) -> None:
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    words = [line.split()[0] for line in lines]
    assert words[0] == "FROM" and set(words) <= INSTRUCTIONS
    assert ":latest" not in lines[0] and ":" in lines[0]
    assert words.index("USER") < words.index("ENTRYPOINT")
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert all((ROOT / word).exists() for word in copied)
    _, command, *arguments = json.loads(lines[words.index("ENTRYPOINT")].partition(" ")[2])
    assert {word for word in arguments if word.startswith("--")} <= options_of(command)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit(path: Path, tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None, comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    assert unit.sections() == ["Unit", "Service", "Install"]
    program, command, *arguments = unit["Service"]["ExecStart"].split()
    assert program == "/opt/shoal/bin/shoal"
    assert {word for word in arguments if word.startswith("--")} <= options_of(command)
    if (verify := shutil.which("systemd-analyze")) is not None:
        copy = tmp_path / path.name.replace("@", "@x")
        copy.write_text(path.read_text().replace("/opt/shoal/bin/shoal", "/bin/true"))
        done = subprocess.run([verify, "verify", str(copy)], capture_output=True, text=True, check=False)
        assert path.stem not in done.stderr, done.stderr


def test_dashboards_and_alerts_name_metrics_that_exist() -> None:
    status = RunStatus.model_construct(
        run="r", name="n", round=1, head=1, nodes_live=1, train_loss=1.0, validation_loss=1.0, stopped=None, tokens=1,
        update_bytes=1, snapshot=type("S", (), {"at": 0}), nodes=[], paused=None,
    )  # fmt: skip
    known = set(re.findall(r"^# TYPE (\w+)", exposition([status]).decode(), re.M))
    texts = (DEPLOY / "grafana" / "shoal.json").read_text() + (
        DEPLOY / "prometheus" / "alerts.yml"
    ).read_text()
    named = set(re.findall(r"\bshoal_\w+", texts))
    assert named and named <= known, named - known


def test_the_grafana_dashboard_has_panels_that_do_not_overlap() -> None:
    panels = json.loads((DEPLOY / "grafana" / "shoal.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_completion_can_be_shown() -> None:
    from shoal.apps.cli import app

    done = CliRunner().invoke(app, ["--help"])
    assert "--install-completion" in done.output
