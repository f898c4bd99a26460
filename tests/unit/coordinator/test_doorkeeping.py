"""How fast a member is listened to."""

from __future__ import annotations

from shoal.coordinator.doorkeeping import BURST_FRAMES, FRAMES_S, Allowance


def test_a_burst_is_free_and_then_it_is_listened_to_slowly() -> None:
    allowance = Allowance(0.0)
    assert not any(allowance.wait_s(0.0) for _ in range(int(BURST_FRAMES)))
    now = 0.0
    for _ in range(1000):
        now += allowance.wait_s(now)
    assert 0.9 * 1000 / FRAMES_S <= now <= 1.1 * 1000 / FRAMES_S


def test_an_ordinary_member_never_waits() -> None:
    allowance = Allowance(0.0)
    assert not any(allowance.wait_s(beat / 20) for beat in range(10_000))
