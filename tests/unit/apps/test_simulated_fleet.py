"""A fleet file in the simulator means what it means in the lab."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from shoal.apps.simulated_fleet import Played, play, toy_recipe
from shoal.base.errors import ShoalError
from shoal.lab.library import find_fleet, parse_fleet

BRISK = ["strategy.schedule.steps=5", "strategy.seal.deadline_s=30"]
NEAR = """
step: 100 ms
hosts: [{name: n, count: 3, latency: 5 ms, up: 10 Mbit/s, down: 10 Mbit/s}]
"""


def train(fleet: str, rounds: int = 4, **more: float) -> Played:
    recipe = toy_recipe("local-sgd", rounds, BRISK)
    return play(parse_fleet(fleet), recipe, params=300, most_s=more.get("most_s", 3600.0), seed=3)


def test_it_trains_and_says_how_it_went() -> None:
    played = train(NEAR)
    assert (played.nodes, played.rounds, played.ended) == (3, 4, "4 rounds done")
    assert played.loss_last < played.loss_first / 2
    assert 0 < played.utilisation < 1 and played.sent_bytes > 0 and played.events == 0


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = train(NEAR), train(NEAR)
    assert (first.virtual_s, first.sent_bytes, first.loss_last) == (
        second.virtual_s,
        second.sent_bytes,
        second.loss_last,
    )


def test_long_paths_and_slow_devices_take_their_time() -> None:
    near = train(NEAR)
    far = train(NEAR + 'pairs: [{between: ["*", "*"], rtt: 4 s}]')
    slow = train(NEAR.replace("100 ms", "1 s"))
    assert far.virtual_s > near.virtual_s + 4
    assert slow.virtual_s > near.virtual_s + 4 * 5 * 0.8
    assert slow.utilisation > near.utilisation


def test_a_host_that_is_off_is_not_in_the_rounds() -> None:
    off = train(NEAR + "events: [{at: 2 s, do: off, host: n-3}]", rounds=8)
    assert off.events == 1 and off.updates_per_round < train(NEAR, rounds=8).updates_per_round


def test_a_host_that_is_cut_off_from_everybody_is_not_in_the_rounds() -> None:
    cut = train(NEAR + 'events: [{at: 2 s, do: cut, between: [n-3, "*"]}]', rounds=8)
    off = train(NEAR + "events: [{at: 2 s, do: off, host: n-3}]", rounds=8)
    assert cut.updates_per_round == off.updates_per_round


def test_everybody_is_not_the_coordinator_where_machines_sleep_or_lines_change() -> None:
    asleep = train(NEAR + 'events: [{at: 1 s, do: off, host: "*", lasts: 1 s}]')
    thin = train(NEAR + 'events: [{at: 1 s, do: set, host: "*", up: 1 Mbit/s}]')
    assert asleep.rounds == thin.rounds == 4 and asleep.events == 2


def test_a_line_that_loses_everything_holds_up_nobody_for_good() -> None:
    lost = train(NEAR + "events: [{at: 2 s, do: set, host: n-3, loss: 100 %}]", rounds=8)
    assert lost.rounds == 8 and lost.updates_per_round < 3


def test_a_host_must_not_be_called_like_the_coordinator() -> None:
    with pytest.raises(ShoalError, match="SH-LAB-02"):
        train("hosts: [{name: coordinator}]")


def test_without_regions_a_recipe_for_them_is_refused() -> None:
    with pytest.raises(ShoalError, match="halos is trained by regions"):
        toy_recipe("halos", 3, ())


def test_when_the_time_is_over_it_stops() -> None:
    assert train(NEAR, rounds=100_000, most_s=60.0).ended == "the time is over"


@pytest.mark.parametrize("name", ["campus", "hostile-wan"])
def test_shipped_fleets_run_in_it(name: str) -> None:
    played = play(find_fleet(name), toy_recipe("local-sgd", 3, BRISK), params=300, most_s=3600.0, seed=1)
    assert played.rounds == 3


def test_the_command() -> None:
    words = ["sim", "fleet", "continental", "--nodes", "4", "--rounds", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "shoal.apps.cli", *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["nodes"], told["rounds"], told["fleet"]) == (4, 2, "continental")


def test_a_time_that_is_none_is_a_wrong_command_line() -> None:
    words = ["sim", "fleet", "campus", "--time", "xyz"]
    done = subprocess.run(
        [sys.executable, "-m", "shoal.apps.cli", *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and "--time" in done.stderr and "Traceback" not in done.stderr
