"""The emulators' parts that need no network: the model in Python, what `tc` is told, and compiling."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from shoal.base.errors import ShoalError
from shoal.lab import building, netem
from shoal.lab.emulator import Line
from shoal.lab.emulator import Path as Way
from shoal.lab.fleet import Command
from shoal.lab.library import parse_fleet
from shoal.lab.running import plan


def test_a_line_sends_one_after_another_and_drops_what_does_not_fit() -> None:
    line = Line()
    line.set(1000.0, 500.0)
    assert line.book(0.0, 400) == pytest.approx(0.4)
    assert line.book(0.0, 400) == pytest.approx(0.8)
    assert line.book(0.0, 400) == -1.0
    assert line.book(0.5, 400) == pytest.approx(1.2)
    assert line.book(9.0, 400) == pytest.approx(9.4)
    line.set(0.0, 0.0)
    assert line.book(1.0, 10**9) == 1.0


def test_jitter_wanders_slowly_around_nothing() -> None:
    way, rng = Way(jitter=0.01, grid=0.2 / 8), random.Random(1)
    found = [way.jitter_at(0.001 * n, rng) for n in range(400_000)]
    assert abs(statistics.fmean(found)) < 0.002
    assert statistics.pstdev(found) == pytest.approx(0.01, rel=0.15)
    near = statistics.correlation(found[:-20], found[20:])
    far = statistics.correlation(found[:-1000], found[1000:])
    assert near > 0.8 and abs(far) < 0.2
    steps = [b - a for a, b in pairwise(found)]
    assert sum(step < -0.001 for step in steps) < 0.01 * len(steps), (
        "packets a millisecond apart keep their order"
    )


def test_tc_is_told_what_the_model_says() -> None:
    values = [0.05, 0.002, 0.2, 0.01, 0.0, 65536.0]
    line = netem.pair_line(1, 0, True, values, 65536)
    assert line.startswith("qdisc change dev h0 parent 1:11 handle 11: netem limit ")
    assert line.endswith("delay 50000us 2000us 90% loss 1.000000%")
    assert netem.pair_line(1, 0, False, values, 65536).endswith("loss 100.000000%")
    assert netem.up_line(2.5e6, 151400) == "qdisc replace dev wan0 root netem rate 20000000bit limit 100"
    down = netem.down_lines(0, 2, 2.5e6)
    assert down[0] == "class change dev h0 parent 1: classid 1:1 htb rate 20000000bit" and len(down) == 3
    whole = netem.downlink_lines(3, 2)
    assert sum("filter add" in text for text in whole) == 4 and all("dev h3 " in text for text in whole)


def test_the_emulator_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = building.native_emulator(tmp_path)
    assert made is not None and [path.name for path in tmp_path.iterdir()] == [made.name]
    monkeypatch.setenv("PATH", "")
    assert building.native_emulator(tmp_path) == made
    assert building.native_emulator(tmp_path / "other") is None


def test_who_runs_what() -> None:
    fleet = parse_fleet(
        """
        hosts: [{name: a}, {name: b, region: east}, {name: c}]
        commands:
          east: {run: serve, background: true}
          "*": [ls, -l]
        """
    )
    assert plan(fleet, [], []) == {
        "a": Command(run=("ls", "-l")),
        "b": Command(run="serve", background=True),
        "c": Command(run=("ls", "-l")),
    }
    assert plan(fleet, ["true"], ["b"])["b"] == Command(run=("true",))
    assert plan(fleet, ["true"], ["b"])["a"] == Command(run=("ls", "-l"))
    assert set(plan(fleet, ["true"], [])) == {"a", "b", "c"}
    for bad in (
        parse_fleet("hosts: [{name: a}]"),
        parse_fleet("{hosts: [{name: a}], commands: {a: {run: x, background: true}}}"),
    ):
        with pytest.raises(ShoalError, match="SH-LAB-02"):
            plan(bad, [], [])
