"""What shows a run in progress outside a browser: the terminal, the report, traces, other people's loggers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.apps.tracing import root_id, trace_id

from .fleet import Fleet, tiny
from .processes import eventually, run_shoal


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A run with one node; everybody writes spans."""
    folder = tmp_path_factory.mktemp("instruments")
    with Fleet(folder) as started:
        started.environment["SHOAL_TRACES"] = str(folder / "spans.jsonl")
        recipe = tiny(evaluation={"every": 1})
        recipe["strategy"] = {**recipe["strategy"], "schedule": {"steps": 10}}
        started.serve(recipe)
        started.join("ada")
        started.contributes("ada")
        started.seals_after(0, count=4)
        yield started


def shoal(fleet: Fleet, *arguments: str, within_s: float = 120.0) -> str:
    done = run_shoal([*arguments, "--home", str(fleet.home)], within_s=within_s)
    assert done.status == 0, done.err
    return done.out


def test_one_round_is_one_trace_of_coordinator_and_node(fleet: Fleet) -> None:
    def spans() -> list[dict[str, object]]:
        lines = (fleet.folder / "spans.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def whole_round() -> tuple[list[dict[str, object]], int] | None:
        found = spans()
        for number in range(1, 200):
            wanted = f"0x{trace_id(fleet.run, number):032x}"
            mine = [span for span in found if span["context"]["trace_id"] == wanted]  # type: ignore[index]
            if {"round", "training"} <= {span["name"] for span in mine}:
                return mine, number
        return None

    mine, number = fleet.until(whole_round, 120, "a round with spans of both")
    root = next(span for span in mine if span["name"] == "round")
    assert root["context"]["span_id"] == f"0x{root_id(fleet.run, number):016x}"
    assert root["attributes"]["shoal.round"] == number
    work = next(span for span in mine if span["name"] == "training")
    assert work["parent_id"] == root["context"]["span_id"]
    assert work["resource"]["attributes"]["service.instance.id"] == fleet.node_id("ada")


def test_top_in_a_pipe_is_plain(fleet: Fleet) -> None:
    out = shoal(fleet, "top")
    assert "\x1b" not in out
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[1][:2] == [fleet.run, "tiny"]
    assert any(row[1:3] == ["ada", "in"] or row[1:3] == ["ada", "next"] for row in rows)


def test_top_as_json(fleet: Fleet) -> None:
    seen = json.loads(shoal(fleet, "top", "--json"))
    assert seen["run"]["run"] == fleet.run
    assert seen["runs"][0]["name"] == "tiny"


@pytest.mark.parametrize("colour", [True, False])
def test_top_fits_a_terminal_of_80_by_24(fleet: Fleet, colour: bool) -> None:
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", **({} if colour else {"NO_COLOR": "1"})}
    command = [sys.executable, "-m", "shoal.apps.cli", "top", "--every", "0.3", "--home", str(fleet.home)]
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment)
    os.close(other)
    try:
        text = _read_until(main, "Ctrl-C ends")
    finally:
        process.terminate()
        process.wait(120)
        os.close(main)
    frame = text.rpartition("\x1b[H")[2]
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame).replace("\r", "").split("\n")
    assert len(lines) <= 24
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert any("ada" in line for line in lines)
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]m", frame)) is colour


def _read_until(handle: int, word: str) -> str:
    text, deadline = "", time.monotonic() + 120
    while word not in text and time.monotonic() < deadline:
        if select.select([handle], [], [], 1.0)[0]:
            with contextlib.suppress(OSError):
                text += os.read(handle, 65536).decode(errors="replace")
    return text


def test_the_report_needs_nothing_but_itself(fleet: Fleet, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    said = json.loads(shoal(fleet, "report", fleet.run, "--out", str(target), "--json"))
    text = target.read_text("utf-8")
    assert said["bytes"] == target.stat().st_size
    assert text.count("<svg") == 3 and text.count("<polyline") == 6
    assert not re.search(r"(src|href)=|<script|@import|url\(", text)
    assert "ada" in text and "Round 0 is sealed with 1 update." in text


def test_figures_go_to_tensorboard_wandb_and_mlflow(fleet: Fleet, tmp_path: Path) -> None:
    """Each is read back with its own tool's reader."""
    board, offline, store = tmp_path / "board", tmp_path / "wandb", tmp_path / "mlruns"
    targets = ("--tensorboard", str(board), "--wandb", str(offline), "--mlflow", str(store))
    shoal(fleet, "mirror", fleet.run, *targets, within_s=240.0)
    losses = _in_tensorboard(board / fleet.run[:12])
    assert len(losses) >= 4 and losses[-1][1] < losses[0][1]
    assert dict(_in_mlflow(store)) == pytest.approx(dict(losses))
    assert dict(_in_wandb(offline)) == pytest.approx(dict(losses))


def _in_tensorboard(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars("loss/train")]


def _in_mlflow(folder: Path) -> list[tuple[int, float]]:
    """From its file store: a line of time, value and step for each point."""
    (file,) = folder.rglob("metrics/loss.train")
    rows = [line.split() for line in file.read_text().splitlines()]
    return [(int(step), float(value)) for _, value, step in rows]


def _in_wandb(folder: Path) -> list[tuple[int, float]]:
    """From the offline run's file."""
    from wandb.proto import wandb_internal_pb2

    (file,) = eventually(lambda: list(folder.rglob("*.wandb")), 60, "the offline run's file")
    found = []
    for data in _wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        values = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        if "loss/train" in values:
            found.append((int(values["_step"]), float(values["loss/train"])))
    return found


def _wandb_records(data: bytes, block: int = 32768, head: int = 7) -> Iterator[bytes]:
    """A file of records in blocks: each piece has a checksum, its length, and whether it is the last of its record."""
    assert data.startswith(b":W&B")
    place, record = head, b""
    while place < len(data):
        if (left := block - place % block) < head:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        record += data[place + head : place + head + length]
        place += head + length
        if kind in (1, 4):
            yield record
            record = b""


def test_a_paused_run_stays_paused_when_its_coordinator_restarts(fleet: Fleet) -> None:
    assert json.loads(shoal(fleet, "run", "pause", fleet.run, "--json"))["state"] == "paused"
    assert fleet.coordinator is not None
    fleet.coordinator.kill()
    fleet.serve()
    fleet.until(lambda: fleet.status()["nodes"][0]["state"] == "next", 120, "the node is back and rests")
    assert fleet.status()["state"] == "paused"
    standing = fleet.status()["round"]
    changed = json.loads(shoal(fleet, "run", "change", fleet.run, "budget.rounds=99999", "--json"))
    assert changed["parameters"]["budget.rounds"] == 99999
    assert fleet.status()["round"] == standing
    shoal(fleet, "run", "resume", fleet.run)
    fleet.until(lambda: fleet.status()["round"] > standing, 120, "rounds go on")
    assert fleet.status()["rounds"] == 99999
