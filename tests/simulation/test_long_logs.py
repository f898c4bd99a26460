"""What a process remembers of rounds that are long past."""

import pytest

from shoal.runlog import view as views
from shoal.runlog.steps import PackedUpdates
from shoal.runlog.view import STEPS_OPEN, verify_log

from .harness import Fleet


def test_old_steps_are_packed_and_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()

    async def story() -> None:
        fleet.start()
        await fleet.rounds(STEPS_OPEN + 10, 600.0)

    fleet.play(story)
    packed, _ = verify_log(fleet.referee.entries)
    monkeypatch.setattr(views, "STEPS_OPEN", len(fleet.referee.entries))
    whole, _ = verify_log(fleet.referee.entries)
    kinds = [isinstance(step.updates, PackedUpdates) for step in packed.path]
    assert kinds == sorted(kinds, reverse=True) and 5 < sum(kinds) <= len(kinds) - STEPS_OPEN
    for one, other in zip(packed.path, whole.path, strict=True):
        assert isinstance(other.updates, tuple) and len(one.updates) == len(other.updates) > 0
        assert tuple(one.updates) == other.updates and one.updates[-1] == other.updates[-1]
        assert one.totals == other.totals and one.sources == other.sources
