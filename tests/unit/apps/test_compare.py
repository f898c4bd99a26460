"""`shoal compare` and the curves it is made of."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.apps.bench.plan import Question, in_lab, in_simulator, table
from shoal.apps.cli import WRONG_LINE, app, find
from shoal.apps.compare import summary
from shoal.apps.compare_curves import Curve, Point, Prices, with_bytes
from shoal.apps.compare_plot import plot
from shoal.base.errors import ShoalError
from shoal.lab.library import fleet_from

HOSTS = [
    {"name": "quick", "count": 2, "speed": 8, "up": "50 Mbit/s", "down": "50 Mbit/s", "latency": "10 ms"},
    {"name": "slow", "speed": 1, "up": "5 Mbit/s", "down": "20 Mbit/s", "latency": "40 ms"},
]
RECIPE = """
name: digits
model: {kind: mlp, width: 16, layers: 1}
data: {source: digits}
inner: {kind: sgd, lr: 0.1, batch_size: 8}
strategy: {preset: PRESET}
budget: {seconds: 20}
membership: {min_nodes: 8}
"""


def curve(name: str, *points: tuple[float, float]) -> Curve:
    made = tuple(Point(seconds=s, loss=loss, sent_bytes=int(1e6 * s), cost=s) for s, loss in points)
    return Curve(
        name=name,
        points=made,
        seconds=points[-1][0] if points else 0.0,
        rounds=len(points),
        steps=1,
        samples=1,
        sent_bytes=10,
        cost=1.0,
        utilisation=0.5,
    )


def test_the_time_to_a_loss_is_on_the_line_between_two_validations() -> None:
    found = curve("a", (0.0, 2.0), (10.0, 1.0), (20.0, 0.5))
    assert found.seconds_to(1.5) == 5.0
    assert found.seconds_to(1.0) == 10.0
    assert found.seconds_to(2.5) == 0.0
    assert math.isinf(found.seconds_to(0.4))
    assert found.best == 0.5


def test_recipes_are_compared_at_the_lowest_loss_that_all_reached() -> None:
    found = summary([curve("a", (0.0, 2.0), (10.0, 0.2)), curve("b", (0.0, 2.0), (40.0, 1.0))])
    assert found["common_loss"] == 1.0
    assert [row["seconds_to_common_loss"] for row in found["recipes"]] == [pytest.approx(5.5556), 40.0]


def test_a_recipe_that_was_never_validated_has_no_loss_in_common() -> None:
    found = summary([curve("a", (0.0, 2.0), (10.0, 0.2)), curve("b", (0.0, 2.0))])
    assert found["common_loss"] is None
    assert [row["seconds_to_common_loss"] for row in found["recipes"]] == [None, None]


def test_cost_is_devices_and_bytes() -> None:
    prices = Prices(device_hour=1.0, gigabyte=2.0)
    assert prices.cost(1800.0, 4.0, 5e8) == pytest.approx(2.0 + 1.0)
    spread = with_bytes(curve("a", (0.0, 2.0), (10.0, 1.0)), 1_000_000, 0.0, prices)
    assert [point.sent_bytes for point in spread.points] == [0, 1_000_000]


def test_a_plot_is_written_twice(tmp_path: Path) -> None:
    curves = [curve("a", (0.0, 2.0), (10.0, 1.0)), curve("none")]
    made = plot(curves, "fleet", tmp_path / "deep" / "picture")
    assert [path.suffix for path in made] == [".png", ".svg"]
    assert made[0].read_bytes()[:4] == b"\x89PNG"
    assert b"validation loss" in made[1].read_bytes() or b"<svg" in made[1].read_bytes()


def write(folder: Path) -> list[str]:
    fleet = folder / "fleet.yaml"
    fleet.write_text(json.dumps({"name": "three", "step": "400 ms", "hosts": HOSTS}))
    paths = []
    for preset in ("adaptive", "local-sgd"):
        path = folder / f"{preset}.yaml"
        path.write_text(RECIPE.replace("PRESET", preset))
        paths.append(str(path))
    return [*paths, "--fleet", str(fleet)]


def test_the_command_trains_both_and_says_which_is_faster(tmp_path: Path) -> None:
    words = ["compare", *write(tmp_path), "--time", "30s", "--plot", str(tmp_path / "plot"), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert [row["name"] for row in found["recipes"]] == ["adaptive", "local-sgd"]
    adaptive, naive = found["recipes"]
    assert adaptive["seconds_to_common_loss"] < naive["seconds_to_common_loss"]
    assert adaptive["utilisation"] > naive["utilisation"]
    assert all(Path(path).stat().st_size > 1000 for path in found["plots"])
    again = CliRunner().invoke(app, [*words[:-1], "--no-plot", "--json"])
    assert json.loads(again.stdout.strip().splitlines()[-1])["recipes"] == found["recipes"]


def test_one_recipe_is_nothing_to_compare(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["compare", write(tmp_path)[0]])
    assert find(done.exception, ShoalError).code == WRONG_LINE


def test_a_recipe_for_regions_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    regional = tmp_path / "halos.yaml"
    regional.write_text(RECIPE.replace("PRESET", "halos"))
    done = CliRunner().invoke(app, ["compare", *write(tmp_path), str(regional), "--no-plot"])
    refused = find(done.exception, ShoalError)
    assert refused.code == "SH-RECIPE-03" and "halos is trained by regions" in refused.cause


def test_the_lab_wants_to_know_what_a_step_takes(tmp_path: Path) -> None:
    words = write(tmp_path)
    (tmp_path / "fleet.yaml").write_text(json.dumps({"name": "three", "hosts": HOSTS}))
    done = CliRunner().invoke(app, ["compare", *words, "--lab", "--no-plot"])
    refused = find(done.exception, ShoalError)
    assert refused.code == "SH-LAB-02" and "three does not say what a step takes" in refused.cause


def test_bench_plan_has_its_fields() -> None:
    question = Question(
        fleet=fleet_from({"name": "three", "step": "800 ms", "hosts": HOSTS}),
        seconds=12.0,
        patience=4.0,
        width=16,
        lr=0.1,
    )
    found = in_simulator(question, lambda text: None)
    assert found["speedup_vs_ddp"] > 1 and found["speedup_vs_local_sgd"] > 1
    assert 0.5 < found["utilisation"] <= 1.05
    assert found["lab_valid"] is None and found["reasons"]
    assert any("lab valid: simulated" in line for line in table(found))


def test_bench_plan_wants_a_step_in_the_lab_and_has_its_own_in_the_simulator() -> None:
    said: list[str] = []
    fleet = fleet_from({"name": "three", "hosts": HOSTS})
    question = Question(fleet=fleet, seconds=5.0, patience=1.0, width=8, lr=0.1)
    with pytest.raises(ShoalError, match="SH-LAB-02") as caught:
        in_lab(question, said.append, measure=False)
    assert "three does not say what a step takes" in caught.value.cause and not said
    assert in_simulator(question, said.append)["utilisation"] > 0.1
