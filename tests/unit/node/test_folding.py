"""A folder: its residuals on disk, and what its machine does while digests are out."""

from __future__ import annotations

import msgspec
import torch
from runlog.small_log import NODES, blob_id, small_recipe

from shoal.node.events import CancelState, CannotFetch, Fold, FoldShards, Heard, SendUp, ShardsFolded, Ticked
from shoal.node.folding import Residuals
from shoal.runlog.entries import Digests, Folding, Rewind
from shoal.runlog.sharding import Shard, agreed
from shoal.runlog.view import head_of
from shoal.wire.identity import Identity
from shoal.wire.messages import Folded, Rebuild, Stuck
from shoal.wire.signed import Signed, sign
from shoal.worlds.simulated.disk import SimDisk
from shoal.worlds.simulated.host import SimHost
from shoal.worlds.simulated.loop import SimLoop
from shoal.worlds.simulated.network import Link, SimNetwork

from .pupil import Pupil

A, B, C = NODES[:3]


# --- residuals --------------------------------------------------------------------------------------------


def _residuals() -> tuple[Residuals, SimDisk]:
    loop = SimLoop(1, event_budget=100)
    disk = SimDisk()
    host = SimHost(loop, SimNetwork(loop), "h", 1, disk, node=A.node, link=Link())
    return Residuals(host, disk), disk


def _shard(fragment: int, start: int, since: int) -> Shard:
    return Shard(fragment, start, start + 8, since=since)


def test_residuals_are_found_by_the_seal_that_left_them() -> None:
    residuals, disk = _residuals()
    values = {start: torch.arange(8.0) + start for start in (0, 8, 16)}
    kept = [(_shard(0 if start < 16 else 1, start, 0), vector) for start, vector in values.items()]
    residuals.save(7, kept)
    disk.crash(SimLoop(3, event_budget=1).rng)
    for start, vector in values.items():
        loaded = residuals.load(_shard(0 if start < 16 else 1, start, 7))
        assert loaded is not None and torch.equal(loaded, vector)
    assert residuals.load(_shard(0, 0, 6)) is None and residuals.load(_shard(0, 24, 7)) is None
    assert residuals.load(Shard(0, 0, 9, since=7)) is None, "another length"


def test_the_last_two_of_each_fragment_are_kept() -> None:
    """The last may come to nothing: then the seal is folded again from the one before."""
    residuals, disk = _residuals()
    for position in (9, 10, 100, 30):
        for fragment in (0, 1):
            if (position, fragment) != (100, 1):
                residuals.save(position, [(_shard(fragment, 8 * fragment, 0), torch.ones(8))])
    assert sorted(disk.list("")) == ["residual-0-100", "residual-0-30", "residual-1-10", "residual-1-30"]


def test_a_damaged_file_is_a_lost_one() -> None:
    residuals, disk = _residuals()
    for content in (b"", b"noise", msgspec.msgpack.encode({0: b"short"}), msgspec.msgpack.encode([1])):
        disk.write("residual-0-7", content)
        assert residuals.load(_shard(0, 0, 7)) is None


# --- the machine ------------------------------------------------------------------------------------------


def _waiting(*, folders: int = 3) -> Pupil:
    """A node that has the state before a seal whose digests are out."""
    digest = {"kind": "int8", "folders": folders, "shards": 4, "when": "always"}
    strategy = {
        "preset": "local-sgd",
        "schedule": {"steps": 3},
        "codec": {"kind": "none"},
        "seal": {"kind": "all-or-deadline", "deadline_s": 10.0},
        "digest": digest,
    }
    pupil = Pupil(A, B, C, recipe=small_recipe(strategy=strategy))
    _seal(pupil, folders)
    pupil.settle_in()
    return pupil


def _seal(pupil: Pupil, folders: int = 3) -> int:
    clerk = pupil.clerk
    clerk.append(clerk.plan_body(A, B, C, folders=folders, shards=4))
    return clerk.seal(A, B, C)


def _word(pupil: Pupil, node: Identity) -> Signed:
    view = pupil.clerk.view
    step = view.path[-1]
    mine = [n for n, shard in enumerate(step.shards) if node.node in shard.folders]
    items = tuple((n, blob_id("digest", n), 10) for n in mine)
    return sign(node, Folding(run=view.run, node=node.node, at=head_of(view, step.position), items=items))


def _settle(pupil: Pupil, *nodes: Identity) -> None:
    words = tuple(_word(pupil, node) for node in nodes)
    step = pupil.clerk.view.path[-1]
    items = agreed(step, [msgspec.msgpack.decode(word.payload, type=Folding) for word in words])
    pupil.clerk.append(Digests(seal=step.position, items=items, words=words))
    pupil.catch_up()


def test_a_folder_folds_its_shards_once_and_says_so_until_the_log_has_it() -> None:
    pupil = _waiting()
    (work,) = pupil.wanted(FoldShards)
    assert work.step == pupil.machine.view.path[-1] and not pupil.wanted(Fold)
    assert pupil.machine.doing == "waiting for the digests of round 0"
    pupil.step(Ticked())
    assert not pupil.wanted(FoldShards) and not pupil.sent(Folded)
    word = _word(pupil, A)
    pupil.step(ShardsFolded(work.step.position, word))
    assert pupil.sent(Folded) == [Folded(word=word)]
    pupil.step(Ticked())
    assert pupil.sent(Folded) == [Folded(word=word)], "again: it may have been lost"
    _settle(pupil, A, B, C)
    (fold,) = pupil.wanted(Fold)
    assert fold.step.position == work.step.position and fold.step.adopted
    pupil.step(Ticked())
    assert not pupil.sent(Folded)


def test_a_node_that_folds_nothing_waits() -> None:
    pupil = _waiting(folders=1)
    drawn = {node for shard in pupil.machine.view.path[-1].shards for node in shard.folders}
    assert bool(pupil.wanted(FoldShards)) == (A.node in drawn)
    _settle(pupil, A, B, C)
    assert len(pupil.wanted(Fold)) == 1


def test_a_word_that_comes_too_late_is_not_waited_for() -> None:
    pupil = _waiting()
    (work,) = pupil.wanted(FoldShards)
    _settle(pupil, B, C)
    assert pupil.wanted(CancelState) and len(pupil.wanted(Fold)) == 1
    pupil.step(ShardsFolded(work.step.position, _word(pupil, A)))
    assert not pupil.sent(Folded)


def test_a_rewind_ends_it() -> None:
    pupil = _waiting()
    pupil.clerk.append(Rewind(to=0, reason="asked"))
    pupil.catch_up()
    assert pupil.wanted(CancelState) and not pupil.wanted(Fold)
    _seal(pupil)
    pupil.catch_up()
    (again,) = pupil.wanted(FoldShards)
    assert again.step.position == pupil.clerk.view.at


def test_a_state_that_was_wrong_is_not_folded_from() -> None:
    pupil = _waiting()
    pupil.step(Heard(Rebuild(at=0)))
    assert pupil.wanted(CancelState), "whatever it made of that state is no use"
    pupil.has_state(0)
    assert len(pupil.wanted(FoldShards)) == 1


def test_an_update_that_cannot_be_had_is_complained_about() -> None:
    pupil = _waiting()
    position = pupil.machine.view.at
    pupil.step(CannotFetch(position, blob_id("x"), 77.0))
    assert pupil.sent(Stuck) == [Stuck(at=position, blob=blob_id("x"), seconds=77.0)]
    assert not [e for e in pupil.effects if isinstance(e, SendUp) and isinstance(e.message, Folded)]
