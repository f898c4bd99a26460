"""Coordinators that stand by, in simulation: whoever leads dies, hangs or loses the database, and the run goes on."""

from __future__ import annotations

from shoal.worlds.simulated.chaos import Outcome, run_seed
from shoal.worlds.simulated.scenario import FAILOVER_KINDS, draw_scenario, with_standbys

SEEDS = range(1, 81)


MEMBERS = range(1001, 1021)


def _outcomes(seeds: range, kind: str = "") -> list[Outcome]:
    return [run_seed(seed, failover=True, kind=kind) for seed in seeds]


def test_seeds_survive_and_leaders_do_change() -> None:
    outcomes = _outcomes(SEEDS)
    assert sum(outcome.takeovers for outcome in outcomes) > len(SEEDS), (
        "a failover without takeovers proves nothing"
    )


def test_seeds_survive_where_a_majority_keeps_the_log() -> None:
    outcomes = _outcomes(MEMBERS, "members")
    assert sum(outcome.takeovers for outcome in outcomes) > len(MEMBERS) // 2
    assert sum(outcome.rounds for outcome in outcomes) > 2 * len(MEMBERS)


def test_a_seed_gives_the_same_fingerprint_again() -> None:
    first, again = _outcomes(range(5, 8)), _outcomes(range(5, 8))
    assert [outcome.fingerprint for outcome in first] == [outcome.fingerprint for outcome in again]
    assert first[0].fingerprint != run_seed(5).fingerprint


def test_standbys_are_drawn_beside_the_scenario() -> None:
    drawn = [(draw_scenario(seed), with_standbys(draw_scenario(seed))) for seed in range(1, 60)]
    assert {len(scenario.standbys) for _, scenario in drawn} == {1, 2}
    for before, scenario in drawn:
        assert scenario.nodes == before.nodes and set(FAILOVER_KINDS) <= set(scenario.troubles)
    assert {scenario.by_majority for _, scenario in drawn} == {True, False}
