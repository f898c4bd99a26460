"""The seal rule as a table: the round as it is, and what is decided."""

import pytest

from shoal.base.ids import NodeId
from shoal.strategy.seal_rules import SEAL_RULES, AllOrDeadline, Close, Replan, RoundNow, Wait

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
