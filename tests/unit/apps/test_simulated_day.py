"""A large fleet's day: who is near whom, who is awake when, and a run in regions that really trains."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from shoal.apps.simulated_day import PlayedDay, play_day
from shoal.apps.simulated_hours import day_recipe, regions_of, waking
from shoal.apps.simulated_scaling import compare
from shoal.base.errors import ShoalError
from shoal.lab.library import find_fleet, parse_fleet, with_hosts
from shoal.lab.links import Power, fleet_to_links

HOUR_S = 3600.0
TWO_REGIONS = """
defaults: {latency: 5 ms, up: 10 Mbit/s, down: 10 Mbit/s}
hosts: [{name: n, count: 3, region: west}, {name: m, count: 3, region: east}]
"""


def played(seed: int = 1, *, hours: float = 5.0, diurnal: bool = True) -> PlayedDay:
    fleet = with_hosts(find_fleet("continental"), 12)
    return play_day(fleet, day_recipe(()), most_s=hours * HOUR_S, seed=seed, diurnal=diurnal)


def played_with(event: str) -> PlayedDay:
    """Six hours of two regions, to which this happens after two."""
    fleet = parse_fleet(f"{TWO_REGIONS}\nevents: [{{at: 7200 s, {event}}}]")
    return play_day(fleet, day_recipe(()), most_s=6 * HOUR_S, seed=1, diurnal=False)


def test_regions_are_of_near_hosts_and_of_bounded_size() -> None:
    network = fleet_to_links(with_hosts(find_fleet("volunteers"), 200))
    regions = regions_of(network, 30)
    assert sorted(line.name for lines in regions for line in lines) == sorted(network.names)
    assert all(len({line.region for line in lines}) == 1 and len(lines) <= 30 for lines in regions)
    europe = [lines for lines in regions if lines[0].region == "europe"]
    assert max(line.latency_s for line in europe[0]) <= min(line.latency_s for line in europe[-1])


def test_people_are_awake_by_day_and_differ() -> None:
    lines = fleet_to_links(parse_fleet("hosts: [{name: n, count: 40}]")).lines
    for line in lines:
        steps = list(itertools.islice(waking(line, 0.0, 5), 20))
        assert [step.at_s for step in steps] == sorted(step.at_s for step in steps)
        changes = [step.change for step in steps]
        assert [change.on for change in changes if isinstance(change, Power)] == [True, False] * 10
    first = {next(waking(line, 0.0, 5)).at_s for line in lines}
    assert len(first) == len(lines)
    shifted = replace(next(waking(lines[0], 6.0, 5)), what="")
    assert shifted.at_s == pytest.approx(next(waking(lines[0], 0.0, 5)).at_s - 6 * HOUR_S)


def test_a_day_in_regions_trains_and_says_how_much_was_real() -> None:
    day = played()
    assert (day.nodes, day.regions, day.trained_really) == (12, 3, 3)
    assert day.rounds > 0 and day.region_rounds > day.rounds / 2 and day.accepted > day.region_rounds
    assert day.loss_last < day.loss_first and day.power_changes > 0
    assert day.folds_shared > day.folds_made > 0, "who folds the same shares it"
    assert 0.5 < day.throughput_share <= 1 and 0.5 < day.utilisation <= 1
    assert day.online_least < day.nodes


def test_the_same_seed_gives_the_same_day() -> None:
    first, second = (replace(played(hours=2.0), cpu_s=0.0) for _ in range(2))
    assert first == second


def test_a_host_that_is_cut_off_from_everybody_is_not_in_its_regions_rounds() -> None:
    cut, off = played_with('do: cut, between: [n-3, "*"]'), played_with("do: off, host: n-3")
    assert (cut.accepted, cut.samples) == (off.accepted, off.samples)
    assert cut.region_rounds == off.region_rounds > 2


def test_everybody_is_also_coordinators_and_hubs_where_lines_are_cut() -> None:
    cut = played_with('do: cut, between: ["*", "*"]')
    assert cut.region_rounds == 2 and cut.rounds < played_with('do: heal, between: ["*", "*"]').rounds


def test_everybody_is_neither_coordinators_nor_hubs_where_machines_sleep_or_lines_change() -> None:
    asleep = played_with('do: off, host: "*", lasts: 1 h')
    thin = played_with('do: set, host: "*", up: 1 Mbit/s')
    assert asleep.region_rounds > 2 and thin.region_rounds > asleep.region_rounds


@pytest.mark.parametrize("name", ["coordinator", "seat0", "hub1"])
def test_a_host_must_not_be_called_like_a_coordinator_or_a_hub(name: str) -> None:
    with pytest.raises(ShoalError, match="SH-LAB-02"):
        play_day(
            parse_fleet(f"hosts: [{{name: {name}, region: west}}, {{name: n}}]"), day_recipe(()), most_s=1.0
        )


def test_throughput_grows_with_the_nodes() -> None:
    one, eight = compare(find_fleet("campus"), (1, 8), 0)
    assert one.linear == 1.0 and eight.linear > 0.95
    assert eight.useful_samples_per_s > 7 * one.useful_samples_per_s
