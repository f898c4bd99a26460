"""The benchmarks of coming and going give the fields that are asked of them, at a size that takes seconds."""

from __future__ import annotations

import pytest

from shoal.apps.bench.churn import Question as ChurnQuestion
from shoal.apps.bench.churn import measure as measure_churn
from shoal.apps.bench.join import Question as JoinQuestion
from shoal.apps.bench.join import measure as measure_join
from shoal.apps.bench.rejoin import measure as measure_rejoin


def test_churn_ends_with_equal_states_and_every_round() -> None:
    found = measure_churn(ChurnQuestion(nodes=4, rounds=4, replaced=0.25), lambda text: None)
    assert found["rounds"] == found["rounds_calm"] == 4 and found["states_equal"]
    assert found["killed"] >= 3 and found["joined"] > 4 and found["rounds_beyond_deadline"] == 0
    assert set(found) >= {"loss_calm", "loss_churn", "gap", "ok"}


def test_join_fetches_a_whole_state_over_limited_sockets() -> None:
    question = JoinQuestion(megabytes=2, seeders=2, up_mbit=50, down_mbit=100, lab=False)
    found = measure_join(question, lambda text: None)
    assert found["links"] == "rate-limited sockets" and found["size_bytes"] > 2_000_000
    assert found["seconds"] >= found["ideal_s"] * 0.5 and found["ratio"] > 0


@pytest.mark.long
def test_a_killed_node_contributes_again() -> None:
    found = measure_rejoin(2, 1, lambda text: None)
    assert len(found["seconds_to_contribute"]) == 1 and found["worst_s"] > 0
