"""The join screen says what it waits for, and how long where that can be told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.apps.doctor_checks import check_nat, check_packages
from shoal.apps.join_waiting import Speed, Standing, waits_for

READY = Standing(
    state_bytes=500_000_000,
    state_here_bytes=500_000_000,
    behind=0,
    has_state=True,
    round_s=30.0,
    since_seal_s=10.0,
)


def test_each_wait_is_told_in_its_turn() -> None:
    fetching = replace(READY, has_state=False, state_here_bytes=125_000_000)
    assert waits_for(fetching, 12_500_000) == "waits for the state: 125.0 MB of 500.0 MB, about 30 s"
    assert waits_for(fetching, 0.0) == "waits for the state: 125.0 MB of 500.0 MB"
    assert waits_for(replace(READY, behind=3), 0.0) == "catches up: 3 rounds to fold"
    assert waits_for(READY, 0.0) == "waits for the next round, about 20 s"
    assert waits_for(replace(READY, round_s=600.0), 0.0) == "waits for the next round, about 10 min"
    assert waits_for(replace(READY, since_seal_s=40.0), 0.0) == "waits for the next round, any moment"
    assert "2 more nodes" in waits_for(replace(READY, short_of=2), 0.0)
    assert "nobody can tell" in waits_for(replace(READY, round_s=0.0), 0.0)


def test_speed_is_of_the_last_seconds() -> None:
    speed = Speed()
    assert speed.at(0.0, 0) == 0.0
    assert speed.at(1.0, 1000) == 1000.0
    for second in range(2, 30):
        speed.at(float(second), 1000)
    assert speed.at(30.0, 1000) == 0.0


@pytest.mark.parametrize(
    ("address", "verdict"),
    [("192.168.1.7", "warn"), ("100.64.3.2", "warn"), ("8.8.8.8", "ok"), (None, "warn")],
)
def test_nat_is_named_with_what_can_be_done(address: str | None, verdict: str) -> None:
    check = check_nat(lambda: address)
    assert check.verdict == verdict and (verdict == "ok" or check.remedy)


def test_the_packages_here_are_new_enough() -> None:
    assert check_packages().verdict == "ok"
