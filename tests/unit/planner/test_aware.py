"""What the aware planner decides, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.planner.aware import MOST_STEPS, decide
from shoal.planner.codecs import Choice
from shoal.planner.estimates import Traffic
from shoal.planner.health import Standing, Tier

from .question import fact, node, question

SPARSE = (Choice(name="top-k", density=0.1),)


def test_everybody_is_done_at_about_the_same_time() -> None:
    found = decide(question(*[fact(n, step_s=step_s) for n, step_s in enumerate((0.1, 0.2, 0.3, 0.7, 1.5))]))
    ends = [share.expected_ms for share in found.shares.values()]
    assert max(ends) - min(ends) <= 1600
    steps = [found.shares[node(n)].steps for n in range(5)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 10 * steps[4]


def test_the_same_question_has_the_same_answer_and_every_share_a_reason() -> None:
    asked = question(*[fact(n, step_s=0.1 * (n + 1)) for n in range(6)])
    assert decide(asked) == decide(asked)
    assert all(share.reason for share in decide(asked).shares.values())
    assert decide(asked).reason


def test_near_machines_sync_often_and_far_ones_rarely() -> None:
    near = decide(question(*[fact(n, rtt_s=0.002, up_bytes_s=6e7, down_bytes_s=6e7) for n in range(8)]))
    far = decide(question(*[fact(n, rtt_s=0.3) for n in range(8)]))
    assert near.shares[node(0)].steps < 15 < far.shares[node(0)].steps


def test_devices_train_for_the_share_of_the_time_that_was_asked_for() -> None:
    for goal in (0.8, 0.95):
        found = decide(question(*[fact(n, rtt_s=0.1) for n in range(8)], goal=goal))
        share = found.shares[node(0)]
        assert share.steps * 0.2 / (share.expected_ms / 1000) == pytest.approx(goal, abs=0.03)


def test_where_training_goes_on_meanwhile_rounds_are_shorter() -> None:
    fleet = [fact(n, rtt_s=0.2) for n in range(8)]
    waiting, going_on = decide(question(*fleet)), decide(question(*fleet, overlaps=True))
    assert going_on.period_s < waiting.period_s / 4
    assert all(share.spare > 0 for share in going_on.shares.values())
    assert all(share.spare == 0 for share in waiting.shares.values())


def test_a_slow_line_gets_less_work_and_sets_nobody_elses_pace() -> None:
    fleet = [fact(n) for n in range(8)]
    before = decide(question(*fleet))
    thin = [replace(fleet[0], up_bytes_s=12.5e4, down_bytes_s=12.5e4), *fleet[1:]]
    after = decide(question(*thin))
    assert after.period_s < 1.2 * before.period_s
    assert after.shares[node(0)].steps < before.shares[node(0)].steps / 2
    assert after.shares[node(1)].steps >= before.shares[node(1)].steps


def test_all_lines_at_a_tenth_make_rounds_longer() -> None:
    fleet = [fact(n) for n in range(8)]
    slow = [replace(one, up_bytes_s=12.5e5, down_bytes_s=12.5e5) for one in fleet]
    traffic = Traffic(update_bytes=1_000_000, received=7)
    before, after = decide(question(*fleet, traffic=traffic)), decide(question(*slow, traffic=traffic))
    assert after.shares[node(0)].steps > 2 * before.shares[node(0)].steps


def test_a_device_that_cannot_take_one_step_in_time_takes_a_smaller_one() -> None:
    found = decide(question(*[fact(n) for n in range(7)], fact(9, step_s=20.0), steps=4))
    assert found.shares[node(9)].batch < 8
    assert "instead of 8" in found.shares[node(9)].reason
    assert all(found.shares[node(n)].batch == 8 for n in range(7))


def test_a_budget_of_rounds_keeps_the_sum_of_steps() -> None:
    fleet = [fact(n, step_s=step_s) for n, step_s in enumerate((0.1, 0.2, 0.4, 0.8))]
    found = decide(question(*fleet, fixed_work=True))
    assert sum(share.steps for share in found.shares.values()) == pytest.approx(4 * 30, rel=0.1)
    assert all(share.window_ms == 0 for share in found.shares.values())


def test_while_nothing_is_known_a_short_time_shows_it() -> None:
    fleet = [fact(n, step_s=0.0, batch=0) for n in range(4)]
    found = decide(question(*fleet))
    assert {share.window_ms for share in found.shares.values()} == {2000}
    assert "known" in found.reason


def test_a_newcomer_among_known_ones_gets_what_fits_into_the_round() -> None:
    found = decide(question(*[fact(n) for n in range(4)], fact(9, step_s=0.0, batch=0)))
    assert 0 < found.shares[node(9)].window_ms <= 1000 * found.period_s


def test_the_excluded_are_left_out_with_the_reason_unless_nobody_else_is_there() -> None:
    resting = Standing(tier=Tier.EXCLUDED, until_round=12)
    fleet = [fact(n) for n in range(3)]
    standings = {node(0): resting, node(1): Standing(), node(2): Standing()}
    found = decide(question(*fleet, standings=standings))
    assert set(found.shares) == {node(1), node(2)}
    assert "n0 until round 12" in found.reason
    alone = decide(question(*fleet, standings=dict.fromkeys(standings, resting)))
    assert len(alone.shares) == 3


def test_the_reduced_get_half() -> None:
    standings = {node(0): Standing(tier=Tier.REDUCED), node(1): Standing(), node(2): Standing()}
    found = decide(question(*[fact(n) for n in range(3)], standings=standings))
    assert found.shares[node(0)].steps == pytest.approx(found.shares[node(1)].steps / 2, abs=1)


def test_rounds_stay_within_the_deadline_the_time_left_and_a_bound_on_steps() -> None:
    fleet = [fact(n, rtt_s=3.0) for n in range(4)]
    assert decide(question(*fleet, longest_s=20.0)).period_s == 20.0
    assert decide(question(*fleet, seconds_left=80.0)).period_s == 10.0
    assert decide(question(*fleet, seconds_left=1.0)).period_s == 6.0
    quick = decide(question(*fleet, fact(9, step_s=0.001)))
    assert quick.shares[node(9)].steps <= MOST_STEPS * 30


def test_a_correction_is_seconds_of_a_line() -> None:
    fleet = [fact(n) for n in range(8)]
    plain, corrected = decide(question(*fleet)), decide(question(*fleet, corrections={node(0): 5.0}))
    assert corrected.shares[node(0)].steps < plain.shares[node(0)].steps


def test_thin_uplinks_send_fewer_values_while_there_are_rounds_enough() -> None:
    fleet = [*[fact(n) for n in range(7)], fact(9, up_bytes_s=2e4)]
    found = decide(question(*fleet, codecs=SPARSE))
    assert found.shares[node(9)].thin == 8
    assert "one value in 8" in found.shares[node(9)].reason
    assert all(found.shares[node(n)].thin == 1 for n in range(7))
    assert decide(question(*fleet, codecs=SPARSE, rounds_left=100)).shares[node(9)].thin == 2
    assert decide(question(*fleet, codecs=SPARSE, rounds_left=10)).shares[node(9)].thin == 1
    assert decide(question(*fleet)).shares[node(9)].thin == 1


def test_what_is_lost_in_every_round_all_the_same_makes_rounds_longer() -> None:
    fleet = [fact(n, rtt_s=0.01) for n in range(8)]
    short = decide(question(*fleet, overlaps=True))
    long = decide(question(*fleet, overlaps=True, idle_s=0.2))
    assert long.period_s == pytest.approx(4.0)
    assert short.period_s < 2.0
    assert "but for 0.2 s" in long.reason


def test_the_reason_names_the_line_that_decided() -> None:
    fleet = [*[fact(n, rtt_s=0.05) for n in range(6)], fact(7, rtt_s=0.3)]
    alone = decide(question(*fleet, overlaps=True))
    assert alone.period_s == pytest.approx(1.5 * 1.92, abs=0.05)
    assert "the slowest line (n6) syncs in 1.9 s" in alone.reason
    passed_over = decide(question(*fleet, fact(8, rtt_s=3.0), overlaps=True))
    assert "the slowest line that sets the pace (n6) syncs in 1.9 s" in passed_over.reason
    waiting = decide(question(*fleet))
    assert f"syncing {0.05 * waiting.period_s:.2g} s on average" in waiting.reason


def test_the_reason_names_what_is_lost_in_every_round_where_that_decided() -> None:
    found = decide(question(*[fact(n, rtt_s=0.01) for n in range(8)], overlaps=True, idle_s=0.2))
    assert "line" not in found.reason and "but for 0.2 s, for 95% of the time" in found.reason


def test_the_reason_names_the_bound_that_decided() -> None:
    near, far = ([fact(n, rtt_s=rtt_s) for n in range(4)] for rtt_s in (0.001, 3.0))
    cases = {
        "a round of 1.5 s, no less than 1/4 of 30 steps:": question(*near, overlaps=True),
        "a round of 0.2 s, no less than one step:": question(*near, overlaps=True, steps=1),
        "a round of 96.0 s, no more than 16 times 30 steps:": question(*far),
        "a round of 20.0 s, all that the seal rule has time for:": question(*far, longest_s=20.0),
        "a round of 10.0 s, 1/8 of the seconds left:": question(*far, seconds_left=80.0),
        "a round of 6.0 s, 30 steps, as the end is near:": question(*far, seconds_left=1.0),
    }
    for words, asked in cases.items():
        assert decide(asked).reason.startswith(words)


def test_in_a_large_fleet_only_the_unusual_are_told_why() -> None:
    fleet = [fact(n) for n in range(100)]
    standings = {one.node: Standing() for one in fleet} | {node(7): Standing(tier=Tier.REDUCED)}
    found = decide(question(*fleet, standings=standings))
    assert [one for one, share in found.shares.items() if share.reason] == [node(7)]
