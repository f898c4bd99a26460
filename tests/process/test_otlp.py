"""Spans reach a collector over OTLP, from coordinator and node alike, as one tree a round."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.apps.tracing import root_id, trace_id

from .fleet import Fleet, tiny

TESTS = Path(__file__).parents[1]


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Its address, and the file of the spans that it was given."""
    file = tmp_path / "spans.jsonl"
    file.touch()
    command = [sys.executable, "-m", "process.otlp_receiver", str(file)]
    with subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}", file
        finally:
            process.kill()


def test_a_collector_is_given_whole_rounds(collector: tuple[str, Path], tmp_path: Path) -> None:
    address, file = collector
    with Fleet(tmp_path) as fleet:
        fleet.environment["SHOAL_TRACES"] = address
        recipe = tiny()
        recipe["strategy"] = {**recipe["strategy"], "schedule": {"steps": 10}}
        fleet.serve(recipe)
        fleet.join("ada")
        mine, number = fleet.until(lambda: _whole_round(file, fleet.run), 120, "a round with spans of both")
        root = next(span for span in mine if span["name"] == "round")
        assert root["span"] == f"{root_id(fleet.run, number):016x}" and root["parent"] == ""
        work = next(span for span in mine if span["name"] == "training")
        assert work["parent"] == root["span"] and work["nanoseconds"] > 0
        assert {span["service"]["service.name"] for span in mine} == {"shoal"}
        assert work["service"]["service.instance.id"] == fleet.node_id("ada")
        assert root["service"]["service.instance.id"] != fleet.node_id("ada")


def _whole_round(file: Path, run: str) -> tuple[list[dict[str, Any]], int] | None:
    """The spans of a round in which both had their part, and its number."""
    found = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    for number in range(1, 300):
        mine = [span for span in found if span["trace"] == f"{trace_id(run, number):032x}"]
        if {"round", "training"} <= {span["name"] for span in mine}:
            return mine, number
    return None
