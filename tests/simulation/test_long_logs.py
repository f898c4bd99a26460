"""What a process remembers of rounds that are long past."""

import pytest

from shoal.base.memo import Memo
from shoal.runlog import chain
from shoal.runlog import view as views
from shoal.runlog.steps import PackedUpdates
from shoal.runlog.view import STEPS_OPEN, verify_log
from shoal.wire import identity, signed
from shoal.worlds.simulated.weighing import weigh

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


MEMOS = ((signed, "_read"), (identity, "_remembered"), (identity, "_lately"), (chain, "_remembered"))


def test_what_was_read_and_checked_is_remembered_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, sizes = Fleet(), list[list[int]]()
    memos = [Memo[object, object](40_000) for _ in MEMOS]
    for (module, name), memo in zip(MEMOS, memos, strict=True):
        monkeypatch.setattr(module, name, memo)

    async def story() -> None:
        fleet.start()
        for rounds in (40, 80):
            await fleet.rounds(rounds, 600.0)
            sizes.append([weigh(memo._parts, set()) for memo in memos])

    fleet.play(story)
    # Filled long before, so that a bound which did not hold would show; and what is counted is what it takes.
    assert all(8_000 < size <= 50_000 for size in (*sizes[0], *sizes[1])), sizes


def test_a_round_leaves_little_in_memory() -> None:
    fleet = Fleet()

    async def story() -> None:
        fleet.start()
        await fleet.rounds(2 * STEPS_OPEN + 80, 600.0)

    fleet.play(story)
    entries = fleet.referee.entries
    sizes = []
    for part in (entries[: len(entries) // 2], entries):
        view, _ = verify_log(part)
        sizes.append((weigh([view.path, view.hashes, view.attested, view.snapshots], set()), len(view.path)))
    (half, fewer), (whole, more) = sizes
    assert (whole - half) / (more - fewer) < 3500, sizes
