"""`shoal bench sync`: how a sync is timed, and the whole of it with a small model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from shoal.apps.bench.sync_process import sync_recipe
from shoal.apps.bench.syncing import PROFILES, _stages, _sync_after, _sync_s, measure
from shoal.base.errors import ShoalError
from shoal.strategy.recipe import recipe_from

FOUND = {
    ("stepped", 4): {"a": 10.0, "b": 10.1},
    ("claimed", 4): {"a": 10.2, "b": 10.4},
    ("adopted", 4): {"a": 10.5, "b": 10.9},
    ("stepped", 5): {"a": 14.0, "b": 14.0},
    ("adopted", 5): {"a": 14.3},
    ("stepped", 6): {"a": 18.0},
    ("adopted", 6): {"a": 19.5},
}


def test_a_sync_is_from_the_last_step_to_the_last_adoption() -> None:
    assert _sync_s(FOUND, 4, ("a", "b")) == pytest.approx(0.8)
    assert _stages(FOUND, [4]) == {"claimed": 0.3, "adopted": 0.8}


def test_after_a_cut_only_those_left_and_later_steps_count() -> None:
    assert _sync_after(FOUND, 9.0, ("a", "b")) == pytest.approx(0.8)
    assert _sync_after(FOUND, 12.0, ("a", "b")) is None, "b never came to the fifth"
    assert _sync_after(FOUND, 15.0, ("a",)) == pytest.approx(1.5)


@pytest.mark.parametrize("preset", ["sparseloco", "auto", "local-sgd"])
def test_every_named_algorithm_can_be_timed(preset: str) -> None:
    assert recipe_from(sync_recipe(4, preset)).strategy.schedule.steps == 1


def test_regions_are_refused_before_there_is_a_lab() -> None:
    with pytest.raises(ShoalError, match="halos is trained by regions"):
        measure("A", None, "halos", 1000, lambda text: None)


@pytest.mark.long
@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_the_command(profile: str) -> None:
    words = ["bench", "sync", "--profile", profile, "--params", "200000", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "shoal.apps.cli", *words], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert 0 < told["seconds"] < 30 and 0 < told["seconds_after_cut"] < 30 and told["wire_bytes"] > 0
    assert told["congestion"] in told["congestion_available"] and isinstance(told["lab_valid"], bool)
