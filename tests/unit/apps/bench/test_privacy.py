"""The benchmark of privacy: both runs train, the budget holds, and the answer has its fields."""

import json

from typer.testing import CliRunner

from shoal.apps.bench import app


def test_a_short_private_run_keeps_its_budget_and_says_what_it_cost() -> None:
    done = CliRunner().invoke(app, ["privacy", "--epsilon", "4", "--rounds", "10", "--nodes", "2", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert 3.5 < found["epsilon"] <= 4.0 and found["delta"] == 1e-5 and found["steps"] == 20
    assert found["gap"] == found["accuracy_without"] - found["accuracy"]
    assert 0.5 < found["accuracy"] <= found["accuracy_without"] + 0.05
