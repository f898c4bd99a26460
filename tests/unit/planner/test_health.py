"""Scores and tiers."""

from __future__ import annotations

from shoal.planner.health import (
    FIRST_REST,
    LONGEST_REST,
    Health,
    HealthWeights,
    Standing,
    Tier,
    health,
    stand,
)

from .question import fact, node


def scored(score: float) -> Health:
    return Health(node=node(1), score=score, speed=1, network=1, quality=1, uptime=1)


def test_each_part_lowers_the_score_by_its_weight() -> None:
    usual = [fact(number) for number in range(5)]
    worse = {
        "speed": fact(9, step_s=20.0),
        "network": fact(9, rtt_s=5.0, loss=0.2, failed=0.9),
        "quality": fact(9, quality=0.0),
        "uptime": fact(9, uptime=0.0),
    }
    middle = health({one.node: one for one in usual}, HealthWeights())[node(0)].score
    for part, bad in worse.items():
        found = health({one.node: one for one in (*usual, bad)}, HealthWeights())
        assert getattr(found[node(9)], part) < 0.2, part
        assert found[node(9)].score < middle, part
        alone = HealthWeights(**{**dict.fromkeys(worse, 0.0), part: 1.0})
        score = health({one.node: one for one in (*usual, bad)}, alone)[node(9)].score
        assert score == getattr(found[node(9)], part)


def test_speed_is_against_the_middle_of_the_fleet() -> None:
    fleet = [fact(1, step_s=0.8), fact(2), fact(3), fact(4), fact(5, step_s=0.05)]
    found = health({one.node: one for one in fleet}, HealthWeights())
    assert [found[node(n)].speed for n in (1, 2, 5)] == [0.0, 0.5, 1.0]


def test_nobody_is_judged_by_what_is_not_known() -> None:
    unknown = fact(1, step_s=0.0, rtt_s=0.0, up_bytes_s=0.0, down_bytes_s=0.0, batch=0)
    found = health({unknown.node: unknown}, HealthWeights())[unknown.node]
    assert stand(Standing(), found, 0).tier in (Tier.NORMAL, Tier.PRIORITY)


def test_an_excluded_node_comes_back_reduced_and_rests_longer_each_time() -> None:
    standing = stand(Standing(), scored(0.1), 10)
    assert standing.tier is Tier.EXCLUDED
    assert standing.until_round == 10 + FIRST_REST
    assert stand(standing, scored(0.9), 10 + FIRST_REST - 1).tier is Tier.EXCLUDED
    back = stand(standing, scored(0.1), 10 + FIRST_REST)
    assert back.tier is Tier.REDUCED
    again = stand(back, scored(0.1), 20)
    assert again.until_round == 20 + 2 * FIRST_REST
    for round_number in range(100, 2000, 100):
        again = stand(stand(again, scored(0.1), round_number), scored(0.1), round_number)
        assert again.until_round <= round_number + LONGEST_REST
    good = stand(stand(again, scored(0.9), 5000), scored(0.9), 5001)
    assert good.tier is Tier.PRIORITY
    assert good.exclusions == again.exclusions - 1


def test_a_score_that_wavers_at_a_border_changes_no_tier() -> None:
    standing = stand(Standing(), scored(0.9), 0)
    for round_number, score in enumerate((0.74, 0.76, 0.73, 0.75), 1):
        standing = stand(standing, scored(score), round_number)
        assert standing.tier is Tier.PRIORITY
    assert stand(standing, scored(0.6), 9).tier is Tier.NORMAL
