"""A planner's word on how long a round waits."""

from __future__ import annotations

import pytest

from shoal.base.ids import NodeId
from shoal.strategy.seal_rules import AllOrDeadline, Close, Quorum, RoundNow, SealRule, Timing, Wait

NODES = [NodeId(name) for name in "abcde"]


def at(now: float, claimed: int, timing: Timing | None) -> RoundNow:
    here = frozenset(NODES)
    return RoundNow(
        now=now,
        opened_at=0.0,
        live=here,
        planned=here,
        claimed=frozenset(NODES[:claimed]),
        arrived_at=tuple(float(place) for place in range(claimed)),
        timing=timing,
    )


def timing(enough_at: float | None, share: float = 0.9) -> Timing:
    return Timing(deadline_s=20.0, share=share, enough_at=enough_at, grace_s=2.0)


RULES = [AllOrDeadline(deadline_s=600.0), Quorum(quorum=5.0, grace_s=60.0, deadline_s=600.0)]


@pytest.mark.parametrize("rule", RULES, ids=["all", "quorum"])
def test_with_enough_the_rest_is_waited_for_a_little(rule: SealRule) -> None:
    assert isinstance(rule.decide(at(6.9, 4, timing(5.0))), Wait)
    closed = rule.decide(at(7.0, 4, timing(5.0)))
    assert closed == Close("4 of 5 updates, 90% of the work; 2.0 s of grace")
    assert isinstance(rule.decide(at(7.0, 4, timing(None, 0.5))), Wait)
    assert isinstance(rule.decide(at(7.0, 4, None)), Wait)


@pytest.mark.parametrize("rule", RULES, ids=["all", "quorum"])
def test_the_planned_deadline_comes_before_the_rules_own(rule: SealRule) -> None:
    assert isinstance(rule.decide(at(19.0, 1, timing(None, 0.2))), Wait)
    closed = rule.decide(at(20.0, 1, timing(None, 0.2)))
    assert isinstance(closed, Close) and "deadline of 20 s" in closed.reason
    assert isinstance(rule.decide(at(20.0, 1, None)), Wait)
