"""Standings: lost quickly, won back slowly, and never for good."""

from __future__ import annotations

from shoal.audit.standing import FULL, NEW, SEAT, USUAL, Standings, share_of
from shoal.base.ids import NodeId

ANN = NodeId("a" * 40)


def _worked(standings: Standings, times: int) -> int:
    for _ in range(times):
        standings.worked(ANN)
    return standings.of(ANN)


def test_work_alone_leads_to_the_usual_and_no_further() -> None:
    standings = Standings()
    assert standings.of(ANN) == NEW and standings.share(ANN) == 1000
    assert _worked(standings, 2000) == USUAL


def test_a_conviction_costs_weight_and_a_second_one_the_seat() -> None:
    standings = Standings()
    _worked(standings, 50)
    standings.forged(ANN)
    assert SEAT <= standings.of(ANN) < FULL and 0 < standings.share(ANN) < 1000
    standings.forged(ANN)
    assert standings.of(ANN) < SEAT and standings.convictions(ANN) == 2


def test_it_recovers_and_what_audits_gave_wears_off() -> None:
    standings = Standings()
    standings.forged(ANN)
    low = standings.of(ANN)
    assert low < _worked(standings, 30) < FULL < _worked(standings, 100)
    for _ in range(9):
        standings.passed(ANN)
    high = standings.of(ANN)
    assert high > USUAL and USUAL <= _worked(standings, 300) < high


def test_withholding_costs_less_than_forging() -> None:
    one, two = Standings(), Standings()
    one.forged(ANN)
    two.withheld(ANN)
    assert one.of(ANN) < two.of(ANN) < NEW


def test_shares_grow_with_the_standing() -> None:
    shares = [share_of(standing) for standing in range(0, 1001)]
    assert shares == sorted(shares) and shares[0] == 1 and shares[FULL] == 1000
