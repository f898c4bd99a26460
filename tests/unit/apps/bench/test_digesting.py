"""The bench of digests counts what a node moves and folds in a round."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from shoal.apps.bench import app
from shoal.apps.bench.digesting import Question, measure, table


def test_a_round_through_digests_and_without() -> None:
    question = Question(
        params=20_000, nodes=(3, 5), folders=1, seed=1, settings=("strategy.schedule.steps=1",)
    )
    result = measure(question, lambda text: None)
    small, large = result["rows"]
    assert [small["nodes"], large["nodes"]] == [3, 5] and small["plain_played"]
    update = large["update_bytes"]
    assert large["plain_received_bytes_per_node"] >= 4 * update, "every other's update"
    assert update < large["received_bytes_per_node"] and large["fold_cpu_s_per_node"] > 0
    assert result["flat"] == max(
        round(large["received_bytes_per_node"] / small["received_bytes_per_node"], 3),
        round(small["received_bytes_per_node"] / large["received_bytes_per_node"], 3),
    )
    assert len(table(result)) == 5


def test_the_command_prints_one_object() -> None:
    done = CliRunner().invoke(
        app, ["digest", "--params", "10000", "--nodes", "2", "--folders", "1", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["folders"] == 1 and [row["nodes"] for row in found["rows"]] == [2]
