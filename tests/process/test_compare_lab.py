"""Recipes compared by real processes on emulated links."""

from __future__ import annotations

import pytest

from shoal.apps.bench.plan import NAIVE, Question, in_lab
from shoal.apps.lab_scaling import compare
from shoal.lab.library import fleet_from

HOSTS = [
    {"name": "quick", "count": 2, "speed": 8, "up": "50 Mbit/s", "down": "50 Mbit/s", "latency": "10 ms"},
    {"name": "slow", "speed": 1, "up": "5 Mbit/s", "down": "20 Mbit/s", "latency": "40 ms"},
]


@pytest.mark.long
def test_planned_against_naive_in_the_lab() -> None:
    said: list[str] = []
    fleet = fleet_from({"name": "three", "step": "800 ms", "hosts": HOSTS})
    question = Question(fleet=fleet, seconds=12.0, patience=2.0, width=16, lr=0.1)
    found = in_lab(question, said.append, measure=False)
    assert found["speedup_vs_ddp"] > 1 and found["speedup_vs_local_sgd"] > 1
    assert 0.5 < found["utilisation"] <= 1
    assert found["lab_valid"] is False, "nothing was measured"
    assert [one.split(":")[0] for one in said[-6::2]] == ["planned", "ddp", "local-sgd"]
    assert any("the last round took" in reason for reason in found["reasons"])
    for name in NAIVE:  # Equal work: a third of the steps on each, which take 0.1, 0.1 and 0.8 s.
        steps, took_s = found["runs"][name]["steps"], found[f"{name.replace('-', '_')}_seconds"]
        assert found["runs"][name]["utilisation"] > 0.7 * steps / 3 / (3 * took_s)


@pytest.mark.long
def test_two_nodes_do_nearly_twice_the_work_of_one_in_the_lab() -> None:
    fleet = fleet_from({"name": "two", "step": "200 ms", "hosts": [{**HOSTS[0], "speed": 1}]})
    one, two = compare(fleet, (1, 2), 15.0, 0, lambda text: None)
    assert one.linear == 1.0 and two.possible_samples_per_s == 2 * one.possible_samples_per_s
    assert 0.5 < two.linear < 1.5 and 0.5 < one.throughput_share <= 1.05
