"""The seal rule as a table: the round as it is, and what is decided."""

import pytest

from shoal.base.ids import NodeId
from shoal.runlog.work import MAX_STALENESS
from shoal.strategy.seal_rules import (
    FIRST_STALENESS,
    SEAL_RULES,
    AllOrDeadline,
    Arrivals,
    Close,
    NodePace,
    Quorum,
    Replan,
    RoundNow,
    Wait,
)

A, B, C = (NodeId(letter * 40) for letter in "abc")


def _decide(age_s: float, live: str, planned: str, claimed: str) -> object:
    def nodes(letters: str) -> frozenset[NodeId]:
        return frozenset(NodeId(letter * 40) for letter in letters)

    return AllOrDeadline(deadline_s=10).decide(
        RoundNow(
            now=100 + age_s,
            opened_at=100,
            live=nodes(live),
            planned=nodes(planned),
            claimed=nodes(claimed),
        )
    )


@pytest.mark.parametrize(
    ("age_s", "live", "planned", "claimed", "decision"),
    [
        (0, "ab", "ab", "", Wait("0 of 2 updates", 110)),
        (9.99, "ab", "ab", "a", Wait("1 of 2 updates", 110)),
        (1, "ab", "ab", "ab", Close("2 of 2 updates")),
        (1, "a", "ab", "a", Close("1 of 2 updates; 1 gone")),
        (1, "", "ab", "a", Close("1 of 2 updates; 1 gone")),
        (1, "b", "abc", "a", Wait("1 of 3 updates", 110)),
        (10, "ab", "ab", "a", Close("1 of 2 updates at the deadline of 10 s")),
        (11, "ab", "ab", "ab", Close("2 of 2 updates")),
        (10, "ab", "ab", "", Replan("no update within 10 s")),
        (1, "", "ab", "", Replan("every member of the plan is gone")),
        (99, "", "ab", "", Replan("every member of the plan is gone")),
    ],
)
def test_all_or_deadline(age_s: float, live: str, planned: str, claimed: str, decision: object) -> None:
    assert _decide(age_s, live, planned, claimed) == decision


def test_the_registry() -> None:
    assert SEAL_RULES["all-or-deadline"](deadline_s=3).deadline_s == 3.0


@pytest.mark.parametrize("deadline_s", [0, -1])
def test_a_deadline_is_above_zero(deadline_s: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        AllOrDeadline(deadline_s)


# --- quorum ------------------------------------------------------------------------------------------------


def _nodes(letters: str) -> frozenset[NodeId]:
    return frozenset(NodeId(letter * 40) for letter in letters)


def _now(age_s: float, live: str, planned: str, claimed: str, *arrived: float, sealed: float = 0) -> RoundNow:
    return RoundNow(
        now=100 + age_s,
        opened_at=100,
        live=_nodes(live),
        planned=_nodes(planned),
        claimed=_nodes(claimed),
        arrived_at=tuple(100 + at for at in arrived),
        sealed_at=100 + sealed,
    )


@pytest.mark.parametrize(
    ("round_now", "decision"),
    [
        (_now(1, "abcd", "abcd", "a", 1), Wait("1 of 4 updates, 2 needed", 110)),
        (_now(1, "abcd", "abcd", "ab", 0.5, 1), Wait("2 of 4 updates, 2 needed; in the time of grace", 104)),
        (
            _now(3.9, "abcd", "abcd", "abc", 0.5, 1, 3),
            Wait("3 of 4 updates, 2 needed; in the time of grace", 104),
        ),
        (_now(4, "abcd", "abcd", "abc", 0.5, 1, 3), Close("3 of 4 updates, 2 needed; 3 s of grace")),
        (_now(1, "abcd", "abcd", "abcd", 1, 1, 1, 1), Close("4 of 4 updates")),
        (_now(1, "ab", "abcd", "ab", 1, 1), Close("2 of 4 updates; 2 gone")),
        (_now(1, "a", "abcd", "a", 1), Close("1 of 4 updates; 3 gone")),
        (_now(10, "abcd", "abcd", "a", 1), Close("1 of 4 updates, 2 needed at the deadline of 10 s")),
        (_now(10, "abcd", "abcd", ""), Replan("no update within 10 s")),
        (_now(9, "abcd", "abcd", "ab", 8, 8.5), Wait("2 of 4 updates, 2 needed; in the time of grace", 110)),
        (_now(1, "", "ab", ""), Replan("every member of the plan is gone")),
    ],
)
def test_quorum(round_now: RoundNow, decision: object) -> None:
    assert Quorum(quorum=0.5, grace_s=3, deadline_s=10).decide(round_now) == decision


@pytest.mark.parametrize(
    ("quorum", "planned", "needed"),
    [(0.5, 4, 2), (0.5, 5, 3), (0.01, 5, 1), (0.99, 5, 5), (1, 5, 1), (3, 5, 3), (9, 5, 5), (2.9, 5, 2)],
)
def test_a_quorum_is_a_share_or_a_number(quorum: float, planned: int, needed: int) -> None:
    assert Quorum(quorum=quorum).needed(planned) == needed


def test_late_work_is_what_tells_quorums_apart() -> None:
    strict, lenient = Quorum(staleness=0), Quorum(staleness=3)
    assert (strict.most_stale, strict.plans_at_once) == (0, False)
    assert (lenient.most_stale, lenient.plans_at_once) == (3, True)
    assert lenient.staleness(NodePace(10**6, 1)) == 3 and not lenient.shares_fleet


# --- arrivals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("round_now", "decision"),
    [
        (_now(5, "ab", "ab", "a", 4, sealed=3), Close("1 arrived of 2 at work")),
        (_now(4, "ab", "ab", "a", 4, sealed=3), Wait("1 arrived, sealed 2 s after the last", 105)),
        (_now(9, "ab", "ab", "", sealed=3), Wait("the next of 2 updates", 111)),
        (_now(9, "", "ab", "", sealed=3), Replan("everyone with work is gone")),
        (_now(9, "", "ab", "a", 4, sealed=3), Close("1 arrived of 2 at work")),
    ],
)
def test_arrivals(round_now: RoundNow, decision: object) -> None:
    assert Arrivals(min_interval_s=2).decide(round_now) == decision


@pytest.mark.parametrize(
    ("work_ms", "seal_ms", "staleness"),
    [
        (0, 0, FIRST_STALENESS),
        (5000, 0, FIRST_STALENESS),
        (0, 2000, FIRST_STALENESS),
        (5000, 2000, 6),
        (5000, 100, 6),
        (100, 2000, 4),
        (10**12, 2000, MAX_STALENESS),
    ],
    ids=["nothing known", "no seals", "a new node", "its own pace", "a burst", "the least", "the most"],
)
def test_adaptive_bounds_follow_each_nodes_pace(work_ms: float, seal_ms: float, staleness: int) -> None:
    rule = Arrivals(min_interval_s=2, staleness=4, slack=2)
    assert rule.staleness(NodePace(work_ms, seal_ms)) == staleness


def test_a_fixed_bound_is_the_same_for_all() -> None:
    rule = Arrivals(staleness=5, adaptive=False)
    assert {rule.staleness(NodePace(work, 1000)) for work in (0, 10, 10**6)} == {5} and rule.most_stale == 5


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("quorum", {"quorum": 0}),
        ("quorum", {"grace_s": -1}),
        ("quorum", {"deadline_s": 0}),
        ("quorum", {"staleness": -1}),
        ("quorum", {"quorum": float("nan")}),
        ("arrivals", {"min_interval_s": 0}),
        ("arrivals", {"staleness": 0}),
        ("arrivals", {"slack": 0}),
        ("arrivals", {"attest_every": 0}),
    ],
)
def test_parameters_are_checked(kind: str, parameters: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        SEAL_RULES[kind](**parameters)


def test_rules_want_to_be_asked_often_enough() -> None:
    assert AllOrDeadline().tick_s == 0.5
    assert Quorum(grace_s=0).tick_s == 0.05 and Quorum(grace_s=4).tick_s == 0.5
    assert Quorum(grace_s=60).tick_s == 3.0, "a twentieth of a long wait is no matter"
    assert Arrivals(min_interval_s=0.4).tick_s == pytest.approx(0.1)
