"""The aware planner on fleets in virtual time: links that fail, nodes that vanish, throughput that grows with nodes."""

from __future__ import annotations

import itertools
import re

import pytest

from shoal.apps.api.diary import Diary
from shoal.apps.api.metrics import exposition
from shoal.apps.api.status import status

from .watched import Sealed, fleet_of, recipe_for, watch

LINE = {"up": "100 Mbit/s", "down": "100 Mbit/s", "latency": "10 ms"}


def line_seconds(one: Sealed) -> float:
    """What the plan of a round says of the slowest line."""
    found = [re.search(r"([0-9.e+]+) s for its line", item.reason) for item in one.plans[0].members]
    return max(float(match[1]) for match in found if match)


def test_a_link_that_drops_to_a_tenth_changes_the_plan_within_two_rounds() -> None:
    nodes, drop_s, end_s = 6, 40.0, 80.0
    slow = {"up": "10 Mbit/s", "down": "10 Mbit/s"}
    events = [{"at": f"{drop_s:g} s", "do": "set", "host": "n-1", **slow}]
    fleet = fleet_of([{"name": "n", "count": nodes, **LINE}], events=events)
    found = watch(fleet, recipe_for(1000.0), params=200_000, most_s=end_s)
    before = [one for one in found.rounds if 10 < one.at_s < drop_s]
    after = [one for one in found.rounds if one.at_s > drop_s]
    usual_s = max(map(line_seconds, before))
    # The first of these was planned before the drop, the third when two rounds had ended after it.
    assert max(map(line_seconds, after[1:3])) > 1.5 * usual_s
    assert found.utilisation(10.0, drop_s, nodes) > 0.95
    assert found.utilisation(after[1].at_s, after[4].at_s, nodes) > 0.85
    assert found.utilisation(after[1].at_s, end_s, nodes) > 0.85
    assert all("trained meanwhile" in one.plans[0].reason for one in after)


def test_where_lines_drop_to_a_tenth_updates_go_by_a_smaller_codec_and_come_back_with_them() -> None:
    """Of all of them: then bytes are what makes rounds longer, and the plan says which codec it takes, and why."""
    nodes, drop_s, heal_s, end_s = 6, 60.0, 120.0, 200.0
    line = {"up": "24 Mbit/s", "down": "24 Mbit/s", "latency": "10 ms"}
    slow = {"up": "2.4 Mbit/s", "down": "2.4 Mbit/s"}
    names = [f"n-{number}" for number in range(1, nodes + 1)]
    events = [{"at": f"{drop_s:g} s", "do": "set", "host": name, **slow} for name in names]
    healed = {"up": line["up"], "down": line["down"]}
    events += [{"at": f"{heal_s:g} s", "do": "set", "host": name, **healed} for name in names]
    fleet = fleet_of([{"name": "n", "count": nodes, **line}], events=events)
    ladder = "[{kind: int4}, {kind: two-bit}]"
    chosen = (
        "strategy.schedule.steps=10",
        "strategy.codec.error_feedback=true",
        f"strategy.codec.choices={ladder}",
    )
    found = watch(fleet, recipe_for(1000.0, *chosen), params=200_000, most_s=end_s)

    def codecs(after_s: float, until_s: float) -> list[str]:
        """Of the whole fleet, by the plans of rounds that were sealed between."""
        plans = [one.plans[0].reason for one in found.rounds if after_s < one.at_s < until_s and one.plans]
        return [match[1] for match in map(re.compile(r"updates by ([a-z0-9-]+)").search, plans) if match]

    assert set(codecs(0, drop_s)) == {"int8"}
    # Of these the first was planned before the drop; rates are known by the best of a few.
    assert set(codecs(drop_s, heal_s)[3:]) == {"two-bit"}
    assert codecs(heal_s, end_s)[-1] == "int8"
    view = found.machine.view
    attested = [{word.state for word in words.values()} for _, words in sorted(view.attested.items())]
    assert len(attested) > 1 and all(len(states) == 1 for states in attested), "everybody folds alike"


@pytest.mark.parametrize("preset", ["adaptive", "local-sgd"])
def test_a_fifth_and_then_half_of_the_nodes_vanish_and_the_run_goes_on(preset: str) -> None:
    away = [("n-1", 40), ("n-2", 40), *((f"n-{number}", 70) for number in range(3, 7))]
    events = [{"at": f"{at} s", "do": "off", "host": name, "lasts": "1000 s"} for name, at in away]
    fleet = fleet_of([{"name": "n", "count": 10, **LINE}], events=events)
    # With one receipt, an update whose author and only holder are among them would be lost, and its round done again.
    sure = ("membership.lease_s=6", "storage.receipts=2")
    recipe = recipe_for(110.0, *sure, "strategy.planner.kind=aware", preset=preset)
    found = watch(fleet, recipe, params=3000, most_s=140.0)
    times = [one.at_s for one in found.rounds]
    deadlines = {round(one.at_s): one.plans[0].deadline_ms / 1000 for one in found.rounds if one.plans}
    for gone_s in (40.0, 70.0):
        following = next(at for at in times if at > gone_s)
        deadline_s = max(at for when, at in deadlines.items() if when <= following + 1)
        assert following - gone_s < deadline_s, (gone_s, following, deadline_s)
    assert found.rounds[-1].updates == 4
    assert found.rounds[-1].loss < found.rounds[0].loss / 5
    losses = [one.loss for one in found.rounds]
    assert all(late <= 1.5 * early + 0.005 for early, late in itertools.pairwise(losses))


def throughput(nodes: int, seconds: float) -> float:
    """Useful samples a second, from the third round on."""
    fleet = fleet_of([{"name": "n", "count": nodes, **LINE}])
    found = watch(fleet, recipe_for(seconds, nodes=nodes), params=300, most_s=seconds + 20)
    rounds = found.rounds[2:]
    return sum(one.samples for one in rounds[1:]) / (rounds[-1].at_s - rounds[0].at_s)


def test_throughput_grows_with_the_nodes() -> None:
    alone = throughput(1, 60.0)
    assert throughput(8, 60.0) > 0.95 * 8 * alone


@pytest.mark.long
def test_throughput_of_fifty_nodes_is_most_of_fifty_times_one() -> None:
    assert throughput(50, 60.0) > 0.85 * 50 * throughput(1, 60.0)


def test_a_fleet_of_unequal_devices_is_kept_busy_and_naive_work_is_not() -> None:
    hosts = [{"name": f"n{speed}", "speed": speed, **LINE} for speed in (1, 2, 4, 8, 16)]
    fleet = fleet_of(hosts)
    aware = watch(fleet, recipe_for(40.0), params=3000, most_s=60.0)
    naive = watch(fleet, recipe_for(40.0, preset="local-sgd"), params=3000, most_s=60.0)
    assert aware.utilisation(10.0, 40.0, 5) > 0.9
    assert naive.utilisation(0.0, 40.0, 5) < 0.5
    assert aware.played.steps > 2 * naive.played.steps


def test_what_is_measured_is_what_the_fleet_has_and_is_shown() -> None:
    hosts = [
        {"name": "near", "count": 3, "region": "here", **LINE},
        {"name": "far", "count": 2, "up": "20 Mbit/s", "down": "50 Mbit/s", "latency": "100 ms", "speed": 4},
    ]
    pairs = [{"between": ["far-1", "far-2"], "rtt": "10 ms"}]
    found = watch(fleet_of(hosts, pairs=pairs), recipe_for(1000.0), params=300_000, most_s=60.0)
    shown = status(found.machine, Diary(), found.now, 5)
    near, far = ([one for one in shown.nodes if one.name.startswith(name)] for name in ("near", "far"))
    for one, rtt_s, step_s, up in [
        *((n, 0.022, 0.2, 12.5e6) for n in near),
        *((f, 0.202, 0.05, 2.5e6) for f in far),
    ]:
        assert one.measured is not None and one.measured.up_bytes_s and one.measured.step_s
        assert one.measured.rtt_s == pytest.approx(rtt_s, rel=0.25)
        assert one.measured.step_s == pytest.approx(step_s, rel=0.1)
        assert 0.2 * up < one.measured.up_bytes_s < 2 * up
        assert one.measured.tier in ("priority", "normal")
    assert sorted(len(region.members) for region in shown.regions) == [2, 3]
    text = exposition([shown]).decode()
    assert all(f"shoal_node_{name}" in text for name in ("rtt_seconds", "health", "up_bytes_per_second"))
